import io
import sys

from credo.engine.fit_job import FitJob


class Terminal(io.StringIO):
    def isatty(self):
        return True


def fit_job(wanted):
    return FitJob(source=None, epochs=1, batch_size=None, lr=1.0, progress=wanted)


def run(wanted, total=3):
    with fit_job(wanted).progress_bar(total) as advance:
        advance(1)
        advance(1, "draws, log density -12.3")
        advance(1, None)


def test_a_terminal_sees_a_bar_with_its_last_words(monkeypatch):
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")
    run(True)
    shown = terminal.getvalue()
    assert "3/3" in shown and "log density -12.3" in shown


def test_nothing_is_written_where_nobody_looks_or_wants_it(monkeypatch, capsys):
    run(True)  # not a terminal
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    run(False)
    assert terminal.getvalue() == "" and capsys.readouterr().out == ""


def test_an_error_inside_passes_through(monkeypatch):
    monkeypatch.setattr(sys, "stderr", Terminal())
    try:
        with fit_job(True).progress_bar(5) as advance:
            advance(2)
            raise KeyError("inside")
    except KeyError as error:
        assert error.args == ("inside",)
    else:
        raise AssertionError("the error was swallowed")
