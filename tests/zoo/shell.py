"""The command line as tests run it."""

from typer.testing import CliRunner

from credo.cli.app import app


class Shell:
    """Runs credo commands in the test's own directory and remembers what was there before."""

    def __init__(self, folder):
        self.folder = folder
        self._runner = CliRunner()

    def __call__(self, *words):
        return self._runner.invoke(app, [str(word) for word in words])

    def refuses(self, *words):
        """The message of a command that must exit with 2 in one line on stderr and leave every file
        as it was.
        """
        before = self.listing()
        result = self(*words)
        assert result.exit_code == 2, (result.output, result.stderr, result.exception)
        lines = result.stderr.strip().splitlines()
        assert len(lines) == 1 and lines[0].startswith("credo: "), lines
        assert self.listing() == before
        return lines[0]

    def listing(self):
        return {
            path: path.read_bytes() if path.is_file() else None for path in self.folder.rglob("*")
        }
