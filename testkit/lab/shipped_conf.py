"""The slurm.conf fragment we ship for the installed Slurm: slurmctld takes it without complaint and calls slurm_resume."""

import re
import subprocess

from lab import PATH, REPOSITORY, Lab
from slurm_conf import Group
from watch import is_up

# Where the lab differs: its own programs, a node count that fits, and times in seconds instead of minutes.
NOT_TAKEN = ("ResumeProgram", "SuspendProgram", "ResumeFailProgram", "NodeName", "PartitionName", "ResumeTimeout", "SuspendTimeout", "SuspendTime")
COMPLAINT = re.compile(r"defunct|deprecated|obsolete|[Uu]nrecognized|[Pp]arsing error|specified more than once|Invalid parameter")


def fragment(version):
    """The newest fragment that is not newer than this Slurm: the file name says from which version on it counts."""
    files = {}
    for path in (REPOSITORY / "slurm-conf").glob("slurm-*.conf"):
        major, minor = path.stem.removeprefix("slurm-").split(".")
        files[int(major), int(minor)] = path
    return files[max(found for found in files if found <= version)]


def settings(path):
    lines = (line.partition("#")[0].strip() for line in path.read_text(encoding="utf-8").splitlines())
    pairs = (re.split(r"\s*=\s*", line, maxsplit=1) for line in lines if line)
    return {key: value for key, value in pairs if key not in NOT_TAKEN}


def scenario():
    text = subprocess.run(["slurmctld", "-V"], capture_output=True, text=True, check=True, env={"PATH": PATH}).stdout
    major, minor, *_ = text.split()[1].split(".")
    path = fragment((int(major), int(minor)))
    shipped = settings(path)
    if "SlurmctldParameters" in shipped:
        # Registrations come from 127.0.0.1 here, which cloud_reg_addrs would take for every node's address.
        kept = [item for item in shipped["SlurmctldParameters"].split(",") if item != "cloud_reg_addrs"]
        shipped["SlurmctldParameters"] = ",".join([*kept, "power_save_interval=1", "power_save_min_interval=0"])
    with Lab("shipped-conf", [Group("c5", 1)], suspend_time=3600, extra=shipped) as lab:
        lab.power_up("c5-1")
        lab.watch.wait("c5-1 up", lambda seen: is_up(seen.nodes.get("c5-1")), 60)
        lab.power_down()
        lab.expect_clean()
        log = (lab.root / "log/slurmctld.log").read_text(encoding="utf-8", errors="replace")
        complaints = [line for line in log.splitlines() if COMPLAINT.search(line)]
        lab.expect(not complaints, f"slurmctld complains about {path.name}: {complaints[:3]}")
