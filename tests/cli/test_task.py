"""The group of tasks."""


def test_the_group_lists_its_commands(shell):
    result = shell("task", "--help")
    assert result.exit_code == 0 and "distill" in result.output
    assert shell("task").exit_code == 2  # a command is missing


def test_unknown_tasks_exit_with_2(shell):
    assert shell("task", "distil").exit_code == 2
