"""Our daemons at the place of ParallelCluster's: real slurmctld, sudo, moto's EC2, DynamoDB and Route 53.

One static node is there when clustermgtd takes over, the other comes up by it alone; an instance goes behind Slurm's back; the fleet is
stopped and started by clusterstatusmgtd and by the package's own route; then what others read of clustermgtd: heartbeat, events, log.
"""

import datetime
import json
import re
import time

from head_node import HEARTBEAT, Resource
from head_node_daemons import HEAD_ID, STATUS_TABLE, DaemonsHeadNode
from parallelcluster import published
from watch import is_off, is_up

STATIC, TAKEN_OVER, BROKEN = "queue-st-res-1", "queue-st-res-2", "rotten-st-res-1"
FIRST, SECOND = "queue-dy-res-1", "queue-dy-res-2"
UP, OFF = {"queue": "UP", "rotten": "UP"}, {"queue": "INACTIVE", "rotten": "INACTIVE"}
LINE = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} - \[(\w+):\w+\] - (DEBUG|INFO|WARNING|ERROR|CRITICAL) - \S")
HEARTBEAT_FORM = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{6}\+0000")
HEAD = {"version": 0, "scheduler": "slurm", "cluster-name": "lab", "node-role": "HeadNode", "component": "clustermgtd", "instance-id": HEAD_ID}
KEYS = [
    "datetime",
    "version",
    "scheduler",
    "cluster-name",
    "node-role",
    "component",
    "level",
    "instance-id",
    "event-type",
    "message",
    "detail",
]


def scenario():
    resources = [
        Resource("queue", "res", static=2, dynamic=2),
        Resource("rotten", "res", static=1, dynamic=0, template_exists=False),
    ]
    # What a site has in minutes is in seconds here, and moto launches MinCount instances, whatever MaxCount says. Everything else is as
    # the cookbook writes it.
    lines = "loop_time = 3\norphaned_instance_timeout = 20\nlaunch_max_batch_size = 1\n"
    with DaemonsHeadNode("parallelcluster-daemons", resources, clustermgtd=lines, suspend_time=3600) as lab:
        theirs = lab.launched_by_the_package(TAKEN_OVER)
        lab.watch.wait(f"{TAKEN_OVER} up", lambda seen: is_up(seen.nodes[TAKEN_OVER]), 90)
        what_it_would_do(lab)
        lab.supervise("clusterstatusmgtd")
        lab.supervise("clustermgtd")
        static_comes_up(lab)
        job = gone_behind_slurms_back(lab)
        is_left = lab.watch.instances[theirs]["state"] == "running" and is_up(lab.watch.nodes[TAKEN_OVER])
        lab.expect(is_left, "the package's instance was not left alone")
        by_clusterstatusmgtd(lab, job)
        by_the_packages_route(lab)
        what_others_read(lab)


def what_it_would_do(lab):
    """Before anything is started: what an admin is shown."""
    checked = lab.as_admin("check")
    lab.expect(checked.count(": fine") == 2, f"slurm-ec2 check says: {checked}")
    would = lab.as_admin("reconcile", "--dry-run")
    lab.expect("the mapping is missing" in would and "nothing to do" in would, f"slurm-ec2 reconcile --dry-run says: {would}")
    lab.expect("RUNNING" in lab.as_admin("fleet", "status"), "slurm-ec2 fleet status does not say RUNNING")


def static_comes_up(lab):
    """Down, launched, published, booted: nobody asks Slurm to power it up."""
    watch = lab.watch
    # States that pass: slurmctld's log says for ever that they were.
    was_set(lab, STATIC, "reason set to: Static node maintenance: unhealthy node is being replaced", "state set to DOWN")
    watch.wait(f"{STATIC} up", lambda seen: is_up(seen.nodes[STATIC]), 120)
    published(lab, [STATIC])
    lab.expect(not watch.calls_of("slurm_resume"), "slurmctld was asked to power a static node up")
    was_set(lab, BROKEN, "reason set to: (Code:InvalidLaunchTemplateName")
    lab.expect(BROKEN not in lab.items(), "a node without instance has an item")


def was_set(lab, node, *words):
    log = lab.root / "log/slurmctld.log"
    for word in words:
        lab.watch.wait(f"{node} {word}", lambda _seen, word=word: f"update_node: node {node} {word}" in log.read_text(errors="replace"), 60)


def gone_behind_slurms_back(lab):
    """slurm_resume goes by the heartbeat; the job of an instance that is gone is requeued and runs again."""
    watch = lab.watch
    # Its first life ends with the instance, its second one with the fleet.
    script = '[ "${SLURM_RESTART_COUNT:-0}" -ge 2 ] || sleep 6000'
    job, _ = lab.submit("queue", 1, script, f"--nodelist={FIRST}")
    watch.wait(f"job {job} RUNNING", lambda seen: seen.jobs.get(job) == "RUNNING", 120)
    lab.expect(watch.calls_of("slurm_resume", FIRST), "the job runs though slurm_resume was not called")
    published(lab, [FIRST])
    gone = watch.mapping["nodes"][FIRST]["instance_id"]
    lab.cloud.client().terminate_instances(InstanceIds=[gone])
    watch.say(f"{gone} terminated behind Slurm's back")
    requeued(lab, job, 1)
    at = time.time()
    at_once(lab, job, SECOND)
    watch.wait(f"job {job} RUNNING again", lambda seen: seen.first("job", job, lambda state: state == "RUNNING", at), 150)
    published(lab, [SECOND])
    watch.wait(f"{FIRST} idle and off", lambda seen: is_off(seen.nodes[FIRST]), 60)
    return job


def requeued(lab, job, times):
    shown = f" Restarts={times} "
    lab.watch.wait(f"job {job} requeued", lambda _seen: shown in lab.shown("job", "-o", job), 60)


def at_once(lab, job, node):
    """A requeued job waits for two minutes. Without that wait it goes to another node: slurmctld still tries for a minute to end its last
    run at the old address, behind which there is the next instance here, as all addresses are this host's."""
    update = ["scontrol", "update", f"jobid={job}", f"reqnodelist={node}", "starttime=now"]
    lab.watch.wait(f"job {job} to go to {node}", lambda _seen: lab.takes(*update), 60)


def by_clusterstatusmgtd(lab, job):
    """Requests as the pcluster command makes them, carried out by our clusterstatusmgtd under a job."""
    watch = lab.watch
    lab.set_status("RUNNING", "STOP_REQUESTED")
    watch.wait("the fleet STOPPED", lambda _seen: lab.status()["status"] == "STOPPED", 120)
    stopped(lab)
    requeued(lab, job, 2)
    watch.wait(f"job {job} of the stopped fleet PENDING", lambda seen: seen.jobs.get(job) == "PENDING", 30)
    through(lab, ["RUNNING", "STOP_REQUESTED", "STOPPING", "STOPPED"])
    lab.expect("is now STOPPING" in "\n".join(lab.log("clusterstatusmgtd")), "clusterstatusmgtd does not say that the fleet was STOPPING")
    written(lab, "STOP_REQUESTED")
    lab.set_status("STOPPED", "START_REQUESTED")
    watch.wait("the fleet RUNNING", lambda _seen: lab.status()["status"] == "RUNNING", 120)
    written(lab, "START_REQUESTED")
    lab.expect(lab.partition_states() == UP, f"partitions of a started fleet: {lab.partition_states()}")
    # On a slow machine its own wait may be over already, and slurmctld's minute, too: then it runs on the node of its last life.
    lab.command(["scontrol", "update", f"jobid={job}", f"reqnodelist={FIRST}", "starttime=now"], check=False)
    statics_up(lab)
    watch.wait(f"job {job} COMPLETED", lambda seen: seen.jobs.get(job) == "COMPLETED", 150)
    through(lab, ["RUNNING", "STOP_REQUESTED", "STOPPING", "STOPPED", "START_REQUESTED", "STARTING", "RUNNING"])


def through(lab, expected):
    """The fleet was so, in this order. A request that is taken at once and a start with nothing in its way may not have been seen."""
    lab.watch.wait(f"the fleet {expected[-1]} at last", lambda _seen: lab.statuses.seen[-1:] == expected[-1:], 60)
    seen, left = lab.statuses.seen, iter(expected)
    lab.expect(all(one in left for one in seen), f"the fleet was {seen}, expected {expected}")


def statics_up(lab):
    for node in (STATIC, TAKEN_OVER):
        lab.watch.wait(f"{node} up", lambda seen, node=node: is_up(seen.nodes[node]), 120)


def written(lab, status):
    """computefleet-status.json: what the table said as the work began, and the request."""
    data = json.loads(lab.status_file.read_text(encoding="utf-8"))
    lab.expect(data["status"] == status, f"{lab.status_file.name} says {data}, expected {status}")
    datetime.datetime.fromisoformat(data["lastStatusUpdatedTime"])
    lab.expect(lab.status_file.stat().st_mode & 0o777 == 0o755, f"the mode of {lab.status_file.name} has changed")


def stopped(lab):
    watch = lab.watch
    watch.wait("every node idle and off", lambda seen: all(map(is_off, seen.nodes.values())), 60)
    lab.expect(lab.partition_states() == OFF, f"partitions of a stopped fleet: {lab.partition_states()}")
    lab.expect_clean(60)
    passes, launched = beats(lab), len(watch.instances)
    watch.wait("two passes over a stopped fleet", lambda _seen: beats(lab) >= passes + 2, 60)
    lab.expect(len(watch.instances) == launched, "instances were launched in a stopped fleet")


def beats(lab):
    """Passes that have come to an end."""
    return sum(event["event-type"] == "clustermgtd-heartbeat" for event in lab.events())


def by_the_packages_route(lab):
    """slurm_fleet_status_manager does the work, with clustermgtd stopped and started around it or running; the table is somebody else's."""
    lab.end("clusterstatusmgtd")
    lab.set_status("RUNNING", "STOP_REQUESTED")
    lab.by_recipe("STOP_REQUESTED", "STOPPING", "STOPPED", stops_clustermgtd=True)
    stopped(lab)
    lab.set_status("STOPPED", "START_REQUESTED")
    lab.by_recipe("START_REQUESTED", "STARTING", "RUNNING", stops_clustermgtd=False)
    lab.expect(lab.partition_states() == UP, f"partitions of a started fleet: {lab.partition_states()}")
    statics_up(lab)
    published(lab, [STATIC, TAKEN_OVER])
    lab.expect(lab.log("slurm_fleet_status_manager.log"), "slurm_fleet_status_manager.log is empty")


def what_others_read(lab):
    """Heartbeat, events and logs are the package's."""
    text = (lab.root / "pcluster" / HEARTBEAT).read_text(encoding="ascii")
    lab.expect(HEARTBEAT_FORM.fullmatch(text), f"the heartbeat is {text!r}")
    for name in ("clustermgtd", "clusterstatusmgtd", "slurm_fleet_status_manager.log"):
        lines = lab.log(name)
        program = name.removesuffix(".log")
        odd = [line for line in lines if not (found := LINE.match(line)) or found[1] != program]
        lab.expect(lines and not odd, f"lines of {name} that the package would not write: {odd[:3]}")
    events = lab.events()
    for event in events:
        lab.expect(list(event) == KEYS and HEAD.items() <= event.items(), f"an event that the package would not write: {event}")
        datetime.datetime.fromisoformat(event["datetime"])
    seen = {event["event-type"]: event for event in events}
    lab.expect(seen["clustermgtd-heartbeat"]["level"] == "INFO", f"a heartbeat's event is {seen['clustermgtd-heartbeat']}")
    gone = seen["invalid-backing-instance-count"]
    expected = {"count": 1, "nodes": [{"name": FIRST}]}
    lab.expect((gone["level"], gone["detail"]) == ("WARNING", expected), f"the event of the instance that was gone is {gone}")
    idle = seen["compute-node-idle-time"]["detail"]
    lab.expect(isinstance(idle["longest-idle-time"], float) and idle["node-type"] in ("static", "dynamic"), f"the event of idle nodes is {idle}")
    failed = seen["node-launch-failure-count"]
    named = [node["name"] for code in failed["detail"]["error-details"].values() for node in code["nodes"]]
    lab.expect((failed["detail"]["failure-type"], named) == ("other-failures", [BROKEN]), f"the event of the failed launch is {failed}")
    lab.expect(STATUS_TABLE in "\n".join(lab.log("clusterstatusmgtd")), "clusterstatusmgtd does not name its table")
