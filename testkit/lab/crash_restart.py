"""kill -9 of slurmctld while a node is powering up, then its restart.

What was saved decides what slurmctld does (observed on 22.05, 24.11 and 26.05):
- node not saved as POWERING_UP: slurm_resume is called again, and that call's time is the new gate. A machine that booted
  before it is ignored, so the older instance must be replaced, whether it had registered before the crash or not.
- node saved as POWERING_UP: no second call; the instance that is on its way must be left alone, and gets in.
"""

import shutil
import time

from lab import Lab
from slurm_conf import Group
from watch import is_up

NODE = "c5-1"


def scenario():
    not_saved(registered=False)
    not_saved(registered=True)
    saved()


def not_saved(registered):
    """`registered`: the instance was let in before the crash; else it is still booting when slurmctld comes back."""
    first = []

    def boot_delay(instance):
        if not first:
            first.append(instance["id"])
        return 1.0 if registered or instance["id"] != first[0] else 600.0

    with Lab("crash-restart", [Group("c5", 2)], boot_delay=boot_delay) as lab:
        watch = lab.watch
        # The job waits long enough to be saved itself (slurmctld saves within 5 s); the power-up after that is what is lost.
        job, _ = lab.submit("c5", 1, "srun hostname", "--begin=now+25")
        time.sleep(8)
        before = snapshot(lab)
        watch.wait(f"the first call of slurm_resume for {NODE}", lambda seen: seen.calls_of("slurm_resume", NODE), 60)
        old = watch.wait("an instance in the mapping", lambda seen: seen.mapping["nodes"].get(NODE, {}).get("instance_id"), 60)
        if registered:
            watch.wait(f"{NODE} registered", lambda seen: is_up(seen.nodes.get(NODE)), 60)
        else:
            watch.wait(f"the address of {NODE}", lambda seen: seen.nodes[NODE]["address"].startswith("127.20."), 60)
        lab.kill_slurmctld()
        put_back(lab, before)
        # Boot times are whole seconds: let the old instance be older than the second call by more than that.
        time.sleep(3)
        lab.start_slurmctld()
        watch.say("slurmctld started again with what it had saved before the power-up")
        watch.wait(f"a second call of slurm_resume for {NODE}", lambda seen: len(seen.calls_of("slurm_resume", NODE)) == 2, 60)
        watch.wait(f"job {job} COMPLETED", lambda seen: seen.jobs.get(job) == "COMPLETED", 120)
        lab.expect(watch.first("instance", old, lambda state: state in ("shutting-down", "terminated")), f"{old}, launched before the second call, was not terminated")
        instances = watch.instances_of(NODE)
        lab.expect(len(instances) == 2 and instances[0] == old, f"instances of {NODE} in turn: {instances}; expected {old} and one that replaced it")
        lab.expect(len(watch.instances) == 2, f"{len(watch.instances)} instances were launched for one node and one replacement")
        lab.expect(len(watch.calls_of("slurm_resume", NODE)) == 2, f"slurm_resume calls: {watch.calls}")
        lab.expect_clean()


def saved():
    with Lab("crash-saved", [Group("c5", 2)], boot_delay=lambda _instance: 14.0) as lab:
        watch = lab.watch
        job, _ = lab.submit("c5", 1, "srun hostname")
        instance = watch.wait("an instance in the mapping", lambda seen: seen.mapping["nodes"].get(NODE, {}).get("instance_id"), 60)
        time.sleep(8)
        lab.kill_slurmctld()
        lab.start_slurmctld()
        watch.say("slurmctld started again with the power-up saved")
        watch.wait(f"{NODE} registered", lambda seen: is_up(seen.nodes.get(NODE)), 60)
        watch.wait(f"job {job} COMPLETED", lambda seen: seen.jobs.get(job) == "COMPLETED", 120)
        lab.expect(watch.instances_of(NODE) == [instance], f"instances of {NODE}: {watch.instances_of(NODE)}, expected {instance} alone")
        lab.expect(len(watch.calls_of("slurm_resume", NODE)) == 1, f"slurmctld called slurm_resume again for a node saved as powering up: {watch.calls}")
        lab.expect_clean()


def snapshot(lab):
    """A copy of what slurmctld has saved. Put back after the crash, it makes sure that the power-up was not saved."""
    copy = lab.root / "slurmctld-before"
    shutil.copytree(lab.root / "slurmctld", copy)
    for name in ("job_state", "node_state"):
        lab.expect((copy / name).exists(), f"slurmctld had not saved {name} before the power-up")
    return copy


def put_back(lab, copy):
    shutil.rmtree(lab.root / "slurmctld")
    copy.rename(lab.root / "slurmctld")
