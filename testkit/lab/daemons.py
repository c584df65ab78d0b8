"""clustermgtd and the fleet on a real slurmctld: what goes wrong behind Slurm's back is put right.

In the middle of each scenario clustermgtd is killed with SIGKILL and started again.
"""

import time

from lab import Lab
from slurm_conf import Group
from watch import is_off, is_up, parse_nodes

# Everything that a site has in minutes is in seconds here.
CLUSTERMGTD = """
[clustermgtd]
loop_time = "2s"
orphan_timeout = "20s"
missing_grace = "10s"
replacement_timeout = "600s"
"""

GONE = ("shutting-down", "terminated")


def lab(name, groups, **options):
    return Lab(name, groups, sections=CLUSTERMGTD, **options)


def killed_and_started(cluster):
    cluster.kill_daemon("clustermgtd")
    time.sleep(1)
    cluster.start_daemon("clustermgtd")


def gone():
    """An instance that is terminated under a running job: the job is requeued and finished, the node comes back."""
    with lab("daemons-gone", [Group("c5", 2)], suspend_time=20) as cluster:
        watch = cluster.watch
        cluster.start_daemon("clustermgtd")
        # The job ends only in its second life.
        mark = cluster.root / "jobs/second-life"
        job, _ = cluster.submit("c5", 1, f'[ "$SLURM_RESTART_COUNT" ] && touch {mark} || sleep 6000')
        watch.wait(f"job {job} RUNNING", lambda seen: seen.jobs.get(job) == "RUNNING", 120)
        (first,) = [name for name, entry in watch.instances.items() if entry["state"] == "running"]
        cluster.cloud.client().terminate_instances(InstanceIds=[first])
        watch.say(f"{first} terminated behind Slurm's back")
        time.sleep(1.5)
        killed_and_started(cluster)
        watch.wait(f"job {job} requeued", lambda _seen: " Restarts=1 " in f"{cluster.shown('job', '-o', job)} ", 60)
        # Without Slurm's wait it goes to the other node: slurmctld still tries for a minute to end its last run where c5-1 was.
        cluster.command(["scontrol", "update", f"jobid={job}", "reqnodelist=c5-2", "starttime=now"], check=False)
        watch.wait(f"job {job} COMPLETED", lambda seen: seen.jobs.get(job) == "COMPLETED", 200)
        cluster.expect(mark.exists(), "the job did not run again")
        cluster.expect(len(watch.instances) == 2, f"{len(watch.instances)} instances were launched, expected the first and one more")
        cluster.expect_clean(120)


def orphan():
    """An instance of ours that stands behind no node is terminated when it is old enough, others' are not."""
    with lab("daemons-orphan", [Group("c5", 1)], suspend_time=3600) as cluster:
        watch = cluster.watch
        cluster.start_daemon("clustermgtd")
        job, _ = cluster.submit("c5", 1, "true")
        watch.wait(f"job {job} COMPLETED", lambda seen: seen.jobs.get(job) == "COMPLETED", 120)
        (ours,) = list(watch.instances)
        state_id = (cluster.root / "state/state-id").read_text(encoding="utf-8").strip()
        orphan_id, launched = launch(cluster, state_id)
        stranger, _ = launch(cluster, "0123456789abcdef")
        time.sleep(5)
        killed_and_started(cluster)
        watch.wait("the orphan terminated", lambda seen: seen.instances.get(orphan_id, {}).get("state") in GONE, 120)
        gone_at = watch.first("instance", orphan_id, lambda state: state in GONE)
        cluster.expect(gone_at - launched >= 19, f"the orphan was terminated {gone_at - launched:.1f} s after its launch, before its timeout of 20 s")
        time.sleep(5)
        states = {name: watch.instances[name]["state"] for name in (ours, stranger)}
        cluster.expect(all(state == "running" for state in states.values()), f"instances that are no orphans of ours: {states}")
        cluster.cloud.client().terminate_instances(InstanceIds=[stranger])
        cluster.power_down()
        cluster.expect_clean(120)


def launch(cluster, state_id):
    tags = [{"Key": f"slurm-ec2:{key}", "Value": value} for key, value in (("cluster", "lab"), ("state", state_id), ("launch", "20260101T000000Z-00000000"))]
    at = time.time()
    # An image that never boots: it must not register behind a node.
    instances = cluster.cloud.client().run_instances(
        ImageId=cluster.cloud.images["dark"],
        MinCount=1,
        MaxCount=1,
        SubnetId=cluster.cloud.subnet,
        TagSpecifications=[{"ResourceType": "instance", "Tags": tags}],
    )["Instances"]
    cluster.watch.say(f"{instances[0]['InstanceId']} launched by nobody's run")
    return instances[0]["InstanceId"], at


def dark():
    """Nodes that never boot: given back after ResumeTimeout, counted, and after so many the queue is taken out of service."""
    protect = CLUSTERMGTD + "protected_failure_count = 2\n"
    groups = [Group("c5", 1), Group("dark", 2, image="dark", resume_timeout=45)]
    with Lab("daemons-dark", groups, sections=protect, suspend_time=3600) as cluster:
        watch = cluster.watch
        cluster.start_daemon("clustermgtd")
        good, _ = cluster.submit("c5", 1, "sleep 30")
        bad, _ = cluster.submit("dark", 2, "true")
        watch.wait("an address of dark-1", lambda seen: seen.first("address", "dark-1", lambda address: address.startswith("127.20.")), 60)
        time.sleep(6)
        killed_and_started(cluster)
        watch.wait("both nodes back after ResumeTimeout", lambda seen: all(is_off(seen.nodes[node]) and failed(seen, node) for node in ("dark-1", "dark-2")), 120)
        watch.wait("partition dark INACTIVE", lambda _seen: "State=INACTIVE" in cluster.shown("partition", "dark"), 60)
        cluster.expect("State=UP" in cluster.command(["scontrol", "show", "partition", "c5"]), "partition c5, whose nodes boot, was set inactive")
        # It is told at the end of the pass.
        cluster.settles(lambda: unsaid(cluster.admin("fleet", "status"), ("PROTECTED", "dark", "slurm-ec2 fleet start")))
        cluster.expect(watch.jobs.get(good) in ("CONFIGURING", "RUNNING", "COMPLETING", "COMPLETED"), "the busy queue's job was ended")
        cluster.command(["scancel", bad])
        cluster.admin("fleet", "start", "--wait")
        cluster.expect("State=UP" in cluster.command(["scontrol", "show", "partition", "dark"]), "partition dark is not UP after a start")
        time.sleep(6)
        cluster.expect("RUNNING" in cluster.admin("fleet", "status"), "the fleet fell back into protected mode because of leftovers")
        watch.wait(f"job {good} COMPLETED", lambda seen: seen.jobs.get(good) == "COMPLETED", 120)
        cluster.power_down()
        cluster.expect_clean(120)


def unsaid(status, words):
    missing = [word for word in words if word not in status]
    return [f"`slurm-ec2 fleet status` says nothing of {', '.join(missing)}: {status}"] if missing else []


def failed(watch, node):
    """Down after ResumeTimeout: seen, unless the daemon was faster, or told to ResumeFailProgram."""
    return watch.first("node", node, lambda state: state.startswith("DOWN")) or watch.calls_of("slurm_resume_fail", node)


def static():
    """Static nodes come up by themselves, are not suspended, and are replaced when their instance is killed."""
    groups = [Group("st", 2, options='static_nodes = "st-1"\n')]
    with lab("daemons-static", groups, suspend_time=5, extra={"SuspendExcNodes": "st-1"}) as cluster:
        watch = cluster.watch
        cluster.start_daemon("clustermgtd")
        watch.wait("a claim or an instance of st-1", lambda seen: "st-1" in seen.mapping["nodes"], 60)
        killed_and_started(cluster)
        watch.wait("st-1 up", lambda seen: is_up(seen.nodes.get("st-1")), 180)
        first = the_one(cluster)
        job, _ = cluster.submit("st", 1, "srun hostname", "--nodelist=st-1")
        watch.wait(f"job {job} COMPLETED", lambda seen: seen.jobs.get(job) == "COMPLETED", 120)
        at = time.time()
        cluster.cloud.client().terminate_instances(InstanceIds=[first])
        watch.say(f"{first} of the static node terminated behind Slurm's back")
        watch.wait("st-1 taken down", lambda seen: was_taken_down(seen, at, first), 60)
        killed_and_started(cluster)
        watch.wait("st-1 up again", lambda seen: is_up(seen.nodes.get("st-1")) and running(seen) and first not in running(seen), 240)
        the_one(cluster)
        job, _ = cluster.submit("st", 1, "srun hostname", "--nodelist=st-1")
        watch.wait(f"job {job} COMPLETED", lambda seen: seen.jobs.get(job) == "COMPLETED", 120)
        time.sleep(10)
        cluster.expect(is_up(watch.nodes["st-1"]), "the static node did not stay up")
        cluster.admin("fleet", "stop", "--wait")
        cluster.expect_clean(120)


def was_taken_down(watch, at, first):
    """It was down, or is already so far on its way up again that this was not seen."""
    entry = watch.mapping["nodes"].get("st-1", {})
    return watch.first("node", "st-1", lambda state: state.startswith("DOWN"), at) or entry.get("instance_id") not in (first, None)


def the_one(cluster):
    """The instance of the one static node. One that clustermgtd was just launching when it was killed is found and ended by the next."""
    watch = cluster.watch
    cluster.settles(lambda: [] if len(running(watch)) == 1 else [f"instances of the one static node: {running(watch)}"])
    (only,) = running(watch)
    cluster.expect(watch.mapping["nodes"].get("st-1", {}).get("instance_id") == only, f"{only} runs, the mapping says {watch.mapping}")
    return only


def running(watch):
    return [name for name, entry in watch.instances.items() if entry["state"] in ("pending", "running")]


DRAINED = "bad disk, ticket 4711"


def fleet():
    """The fleet is stopped and started under jobs; clustermgtd and clusterstatusmgtd are killed in the middle. What a person drained
    stays drained, until a person resumes it; what they set down is drained."""
    with lab("daemons-fleet", [Group("c5", 3)], suspend_time=3600, boot_delay=slow_third()) as cluster:
        watch = cluster.watch
        cluster.start_daemon("clustermgtd")
        cluster.start_daemon("clusterstatusmgtd")
        runs, _ = cluster.submit("c5", 2, "sleep 6000")
        watch.wait(f"job {runs} RUNNING", lambda seen: seen.jobs.get(runs) == "RUNNING", 120)
        boots, _ = cluster.submit("c5", 1, "true")
        watch.wait("an address of c5-3", lambda seen: seen.nodes["c5-3"]["address"].startswith("127.20."), 60)
        # Both have a job, so that clustermgtd leaves them.
        cluster.command(["scontrol", "update", "nodename=c5-1,c5-2", "state=drain", f"reason={DRAINED}"])
        cluster.admin("fleet", "stop")
        watch.wait("the stop has begun", lambda _seen: "State=INACTIVE" in cluster.shown("partition", "c5"), 30)
        # Killed in between: what is to be done about it is in Slurm.
        watch.wait("c5-1 is being taken off", lambda _seen: shown(cluster, "c5-1")["reason"] == f"stopping cluster, was drained: {DRAINED}" or is_drained_off(cluster, "c5-1"), 30)
        cluster.kill_daemon("clusterstatusmgtd")
        killed_and_started(cluster)
        cluster.start_daemon("clusterstatusmgtd")
        watch.wait("the fleet STOPPED", lambda _seen: "STOPPED" in cluster.admin("fleet", "status"), 120)
        cluster.expect(not running(watch) or watch.wait("no instance alive", lambda seen: not running(seen), 30) is not None, "instances live in a stopped fleet")
        watch.wait("every node idle and off", lambda seen: all(map(is_off, seen.nodes.values())), 60)
        cluster.expect("State=INACTIVE" in cluster.command(["scontrol", "show", "partition", "c5"]), "the partition of a stopped fleet is not INACTIVE")
        for node in ("c5-1", "c5-2"):
            cluster.expect(is_drained_off(cluster, node), f"{node}, which a person drained, in the stopped fleet: {shown(cluster, node)}")
        cluster.expect("DRAIN" not in shown(cluster, "c5-3")["state"], "a node that nobody drained is drained")
        for job in (runs, boots):
            watch.wait(f"job {job} of the stopped fleet PENDING", lambda seen, job=job: seen.jobs.get(job) == "PENDING", 60)
        launched = len(watch.instances)
        time.sleep(6)
        cluster.expect(len(watch.instances) == launched, "instances were launched in a stopped fleet")
        cluster.command(["scancel", runs])
        cluster.command(["scontrol", "update", "nodename=c5-2", "state=resume"])
        cluster.admin("fleet", "start", "--wait")
        cluster.command(["scontrol", "update", f"jobid={boots}", "starttime=now"], check=False)
        watch.wait(f"job {boots} COMPLETED", lambda seen: seen.jobs.get(boots) == "COMPLETED", 200)
        pair, _ = cluster.submit("c5", 2, "true")
        watch.wait(f"job {pair} COMPLETED", lambda seen: seen.jobs.get(pair) == "COMPLETED", 200)
        cluster.expect(is_drained_off(cluster, "c5-1"), f"c5-1, which a person drained, after a start: {shown(cluster, 'c5-1')}")
        cluster.expect(len(watch.calls_of("slurm_resume", "c5-1")) == 1, "c5-1 was called for while it was drained")
        cluster.command(["scontrol", "update", "nodename=c5-1", "state=resume"])
        job, _ = cluster.submit("c5", 1, "true", "--nodelist=c5-1")
        watch.wait(f"job {job} COMPLETED on the resumed node", lambda seen: seen.jobs.get(job) == "COMPLETED", 200)
        cluster.expect("RUNNING" in cluster.admin("fleet", "status"), "the fleet is not RUNNING after a start")
        set_down(cluster)
        cluster.admin("fleet", "stop", "--wait")
        cluster.expect_clean(120)


def set_down(cluster):
    """What a person set down, a node whose machine is dead and one that is off, is drained after a stop and a start."""
    watch, nodes = cluster.watch, ("c5-2", "c5-3")
    # It brings back what is down.
    cluster.kill_daemon("clustermgtd")
    cluster.command(["scontrol", "update", "nodename=c5-3", "state=power_down"])
    watch.wait("c5-3 off", lambda seen: is_off(seen.nodes["c5-3"]), 60)
    machine = watch.mapping["nodes"]["c5-2"]["instance_id"]
    cluster.cloud.client().terminate_instances(InstanceIds=[machine])
    watch.wait(f"{machine} terminated", lambda seen: seen.instances[machine]["state"] in GONE, 30)
    time.sleep(2)
    cluster.command(["scontrol", "update", f"nodename={','.join(nodes)}", "state=down", f"reason={DRAINED}"])
    for node in nodes:
        cluster.expect(shown(cluster, node)["state"].startswith("DOWN"), f"{node} is not down: {shown(cluster, node)}")
    for word in ("stop", "start"):
        cluster.admin("fleet", word, "--wait")
        for node in nodes:
            cluster.expect(is_drained_off(cluster, node), f"{node}, which a person set down, after a {word}: {shown(cluster, node)}")
    cluster.command(["scontrol", "update", f"nodename={','.join(nodes)}", "state=resume"])


def shown(cluster, node):
    """State and reason as of now, the reason without its stamp."""
    found = parse_nodes(cluster.command(["scontrol", "show", "node", "-o", node]))[node]
    return {"state": found["state"], "reason": found["reason"]}


def is_drained_off(cluster, node):
    """As a person left it, and off."""
    now = shown(cluster, node)
    return "DRAIN" in now["state"] and "POWERED_DOWN" in now["state"] and now["reason"] == DRAINED


def slow_third():
    """The third instance does not boot, so the stop comes first."""
    seen = []

    def delay(instance):
        if instance["id"] not in seen:
            seen.append(instance["id"])
        return None if seen.index(instance["id"]) == 2 else 1.0

    return delay
