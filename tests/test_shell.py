"""Those without a terminal hear that something goes on."""

import time
import unittest
from unittest import mock

from lab import shell


class Working(unittest.TestCase):
    """What `working` tells."""

    def test_it_tells_at_once_and_how_far_later(self) -> None:
        with (
            mock.patch.object(shell, "TELL_SECONDS", 0.01),
            mock.patch.object(shell, "console") as console,
        ):
            console.is_terminal = False
            with shell.working("filling", lambda: "3 of 5"):
                while console.print.call_count < 2:
                    time.sleep(0.01)
            told = [call.args[0] for call in console.print.call_args_list]
        self.assertEqual(told[0], "filling")
        self.assertRegex(told[1], r"^filling: 3 of 5, \d+ s$")
