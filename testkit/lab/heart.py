"""The heartbeat of the package's clustermgtd, for scenarios that have no daemon.

In:  its path, and the user whose it is. Out: a file written every two seconds, in place, as the package does.
Never: judges whether the cluster is looked after.
"""

import datetime
import os
import threading
from pathlib import Path


class Heart:
    """Beats in a thread from `start` to `stop`."""

    def __init__(self, path, admin):
        self.path = Path(path)
        self.admin = admin
        self.enough = threading.Event()
        self.thread = None

    def start(self):
        self.enough.clear()
        self.beat(datetime.datetime.now(datetime.timezone.utc))
        os.chown(self.path, self.admin.pw_uid, self.admin.pw_gid)
        self.thread = threading.Thread(target=self._run, daemon=True, name="heartbeat")
        self.thread.start()

    def beat(self, moment):
        self.path.write_text(moment.strftime("%Y-%m-%d %H:%M:%S.%f%z"), encoding="ascii")

    def stop(self):
        self.enough.set()
        if self.thread:
            self.thread.join()

    def _run(self):
        while not self.enough.wait(2):
            self.beat(datetime.datetime.now(datetime.timezone.utc))
