"""Ctrl-C works in the tests, also where they were started in the background (`nohup … &` leaves SIGINT ignored)."""

import signal

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
