from credo.cli.printing import print_table


def test_a_piped_table_is_not_cut_and_brackets_stay(capsys):
    print_table("Title", ["name", "value"], [["a[0]", "1.50"], ["b" * 60, "-2e-05"]])
    said = capsys.readouterr().out
    assert "Title" in said and "a[0]" in said and "b" * 60 in said


def test_numbers_are_aligned_to_the_right(capsys):
    print_table("T", ["name", "value"], [["a", "1.5"], ["b", "1,000.5"]])
    first, second = (
        line.rstrip()
        for line in capsys.readouterr().out.splitlines()
        if line.strip()[:1] in ("a", "b")
    )
    assert len(first) == len(second)
