"""What processes that share one set of limits each may use."""

import subprocess
import sys

import pytest

from backend.serving.share import Share, counters_file, counters_in


@pytest.mark.parametrize(
    ("total", "parts"), [(64, [22, 21, 21]), (3, [1, 1, 1]), (66, [22] * 3), (5, [2, 2, 1])]
)
def test_the_parts_are_the_whole_and_about_the_same(total, parts):
    assert [Share([0, 0, 0], index).part_of(total) for index in range(3)] == parts


def test_a_process_of_its_own_has_everything():
    assert Share().part_of(64) == 64
    assert Share().running is not Share().running


def test_other_processes_see_what_is_counted():
    with counters_file(2) as file:
        ours = counters_in(file.fileno())
        ours.running[0] = 3
        code = "import sys; from backend.serving.share import counters_in;"
        code += "them = counters_in(int(sys.argv[1])); them.beats[1] = them.running[0] + 2"
        argv = [sys.executable, "-c", code, str(file.fileno())]
        subprocess.run(argv, check=True, pass_fds=[file.fileno()])
        assert [list(counts) for counts in ours] == [[3, 0], [0, 5]]
