"""A ParallelCluster head node's other user: who runs the programs, and what sudo lets it and SlurmUser do.

In:  SlurmUser's name, the paths that may be run. Out: a user and a group of a name of this run's own, and a file in /etc/sudoers.d;
all three gone at the end, and those of a run that was killed are removed by the next one.
Never: touches an account or a file that it has not made.
"""

import os
import pwd
import re
import shutil
import subprocess
from pathlib import Path

SUDOERS = Path("/etc/sudoers.d")
NAME = "ec2lab"
COMMANDS = ("sudo", "visudo", "useradd", "userdel", "groupadd", "groupdel", "usermod")
PATH = "/usr/sbin:/usr/bin:/sbin:/bin"


class AccountError(Exception):
    """The accounts or sudo's rules cannot be had; the scenario that needs them fails."""


class Accounts:
    def __init__(self, slurm_user):
        self.slurm_user = slurm_user
        self.name = f"{NAME}{os.getpid()}"
        self.rules = SUDOERS / self.name

    def missing(self):
        """What this machine lacks."""
        lacking = [f"{name} (command)" for name in COMMANDS if not shutil.which(name, path=PATH)]
        return lacking + ([] if SUDOERS.is_dir() else [f"{SUDOERS} (folder)"])

    def create(self, home, as_root, as_admin):
        """`as_root` may be run by the new user as root, `as_admin` by SlurmUser as the new user with variables set."""
        self._remove_left_over()
        _run("groupadd", "--system", self.name)
        _run("useradd", "--system", "--no-create-home", "--home-dir", home, "--shell", "/bin/bash", "--gid", self.name, self.name)
        _run("usermod", "--append", "--groups", self.name, self.slurm_user)
        text = (
            f"{self.name} ALL=(root) NOPASSWD: {', '.join(map(str, as_root))}\n"
            f"{self.slurm_user} ALL=({self.name}) NOPASSWD:SETENV: {', '.join(map(str, as_admin))}\n"
        )
        new = self.rules.with_suffix(".new")  # sudo reads no file with a dot in its name
        new.write_text(text, encoding="utf-8")
        new.chmod(0o440)
        _run("visudo", "--check", "--quiet", "--file", new)
        new.rename(self.rules)
        return pwd.getpwnam(self.name)

    def remove(self):
        for path in (self.rules, self.rules.with_suffix(".new")):
            path.unlink(missing_ok=True)
        _remove(self.name)

    def _remove_left_over(self):
        """What a run left that was killed with SIGKILL: its pid is in the name, and may be this run's by now."""
        for entry in pwd.getpwall():
            found = re.fullmatch(rf"{NAME}(\d+)", entry.pw_name)
            if found and (entry.pw_name == self.name or not Path(f"/proc/{found[1]}").exists()):
                for path in (SUDOERS / entry.pw_name, SUDOERS / f"{entry.pw_name}.new"):
                    path.unlink(missing_ok=True)
                _remove(entry.pw_name)


def _remove(name):
    # userdel takes the group with it where the user is its only primary member; else groupdel does.
    for command in ("userdel", "groupdel"):
        subprocess.run([command, name], stdin=subprocess.DEVNULL, capture_output=True, check=False, env={"PATH": PATH})


def _run(*command):
    done = subprocess.run(
        [str(part) for part in command], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, env={"PATH": PATH}
    )
    if done.returncode != 0:
        raise AccountError(f"{' '.join(map(str, command))}: exit status {done.returncode}: {done.stderr.strip()}")
