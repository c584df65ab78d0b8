"""SlurmUser is not root: the programs run as `slurm`, and a call by root in between leaves nothing they cannot open."""

import pwd

from lab import Lab
from slurm_conf import Group

USER = "slurm"


def scenario():
    with Lab("slurm-user", [Group("c5", 2)], user=USER) as lab:
        watch = lab.watch
        job, _ = lab.submit("c5", 1, "srun hostname")
        watch.wait(f"job {job} COMPLETED", lambda seen: seen.jobs.get(job) == "COMPLETED", 120)
        lab.expect_clean()
        lab.command([lab.root / "programs/bin/slurm_suspend", "--config", lab.root / "etc/slurm-ec2.toml", "c5-2"], env={"HOME": "/root"})
        owner = pwd.getpwnam(USER).pw_uid
        owners = {path: owner_of(path) for path in (lab.root / "state").rglob("*")}
        lab.expect(any(one is not None for one in owners.values()), "the state folder is empty after a whole cycle")
        foreign = [str(path) for path, one in owners.items() if one not in (None, owner)]
        lab.expect(not foreign, f"files in the state folder that do not belong to {USER}: {', '.join(foreign)}")
        # And slurmctld's own calls still work after it.
        again, _ = lab.submit("c5", 1, "srun hostname")
        watch.wait(f"job {again} COMPLETED", lambda seen: seen.jobs.get(again) == "COMPLETED", 120)
        lab.expect_clean()


def owner_of(path):
    """None: it is gone, as a file is that a run had for a moment."""
    try:
        return path.stat().st_uid
    except FileNotFoundError:
        return None
