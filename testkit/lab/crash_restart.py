"""kill -9 of slurmctld while a node is powering up, then its restart.

What was saved decides what slurmctld does (observed on 22.05, 24.11 and 26.05):
- node not saved as POWERING_UP: slurm_resume is called again, and that call's time is the new gate. A machine that booted
  before it is ignored, so the older instance must be replaced, whether it had registered before the crash or not.
- node saved as POWERING_UP: no second call; the instance that is on its way must be left alone, and gets in.
"""

import shutil
import threading
import time

from lab import Lab
from slurm_conf import Group
from watch import is_up

NODE = "c5-1"
JOB_NAME = "saved-before"


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
        return 1.0 if registered or instance["id"] != first[0] else None

    with Lab("crash-restart", [Group("c5", 2)], boot_delay=boot_delay) as lab:
        watch = lab.watch
        # Held until it is saved itself: the power-up after that is what is lost. A first life, before the crash, does not end.
        second_life = lab.root / "jobs/second-life"
        script = f"[ -e {second_life} ] || sleep 6000; srun hostname"
        job, _ = lab.submit("c5", 1, script, "--hold", f"--job-name={JOB_NAME}")
        before = snapshot(lab)
        lab.command(["scontrol", "release", job])
        watch.wait(f"the first call of slurm_resume for {NODE}", lambda seen: seen.calls_of("slurm_resume", NODE), 60)
        old = watch.wait("an instance in the mapping", lambda seen: seen.mapping["nodes"].get(NODE, {}).get("instance_id"), 60)
        if registered:
            watch.wait(f"{NODE} registered", lambda seen: is_up(seen.nodes.get(NODE)), 60)
        else:
            watch.wait(f"the address of {NODE}", lambda seen: seen.nodes[NODE]["address"].startswith("127.20."), 60)
        lab.kill_slurmctld()
        put_back(lab, before)
        second_life.touch()
        # Boot times are whole seconds: let the old instance be older than the second call by more than that.
        time.sleep(3)
        lab.start_slurmctld()
        lab.command(["scontrol", "release", job])
        watch.say("slurmctld started again with what it had saved before the power-up")
        watch.wait(f"a second call of slurm_resume for {NODE}", lambda seen: len(seen.calls_of("slurm_resume", NODE)) == 2, 60)
        watch.wait(f"job {job} COMPLETED", lambda seen: seen.jobs.get(job) == "COMPLETED", 120)
        watch.wait(
            f"{old}, launched before the second call, terminated",
            lambda seen: seen.first("instance", old, lambda state: state in ("shutting-down", "terminated")),
            60,
        )
        instances = watch.instances_of(NODE)
        lab.expect(len(instances) == 2 and instances[0] == old, f"instances of {NODE} in turn: {instances}; expected {old} and one that replaced it")
        lab.expect(len(watch.instances) == 2, f"{len(watch.instances)} instances were launched for one node and one replacement")
        lab.expect(len(watch.calls_of("slurm_resume", NODE)) == 2, f"slurm_resume calls: {watch.calls}")
        lab.expect_clean()


def saved():
    restarted = threading.Event()
    with Lab("crash-saved", [Group("c5", 2)], boot_delay=lambda _instance: 1.0 if restarted.is_set() else None) as lab:
        watch = lab.watch
        job, _ = lab.submit("c5", 1, "srun hostname")
        instance = watch.wait("an instance in the mapping", lambda seen: seen.mapping["nodes"].get(NODE, {}).get("instance_id"), 60)
        address = watch.wait("its address", lambda seen: seen.instances.get(instance), 60)["address"]
        # It is told to slurmctld after the power-up, so where the one is the other is too.
        watch.wait("slurmctld has saved the address", lambda _seen: has_saved(lab.root / "slurmctld", "node_state", address), 60)
        lab.kill_slurmctld()
        lab.start_slurmctld()
        restarted.set()
        watch.say("slurmctld started again with the power-up saved")
        watch.wait(f"job {job} COMPLETED", lambda seen: seen.jobs.get(job) == "COMPLETED", 120)
        lab.expect(watch.instances_of(NODE) == [instance], f"instances of {NODE}: {watch.instances_of(NODE)}, expected {instance} alone")
        lab.expect(len(watch.calls_of("slurm_resume", NODE)) == 1, f"slurmctld called slurm_resume again for a node saved as powering up: {watch.calls}")
        lab.expect_clean()


def snapshot(lab):
    """A copy of what slurmctld has saved. Put back after the crash, it makes sure that the power-up was not saved."""
    copy = lab.root / "slurmctld-before"
    lab.watch.wait("slurmctld has saved the job and its nodes", lambda _seen: copied(lab, copy), 60)
    return copy


def copied(lab, copy):
    """False: not saved yet, or it was just being written."""
    shutil.rmtree(copy, ignore_errors=True)
    try:
        shutil.copytree(lab.root / "slurmctld", copy)
    except (OSError, shutil.Error):
        return False
    return has_saved(copy, "job_state", JOB_NAME) and has_saved(copy, "node_state", NODE)


def has_saved(folder, name, text):
    try:
        return text.encode() in (folder / name).read_bytes()
    except FileNotFoundError:
        return False


def put_back(lab, copy):
    shutil.rmtree(lab.root / "slurmctld")
    copy.rename(lab.root / "slurmctld")
