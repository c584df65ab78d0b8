"""A ParallelCluster head node on which our daemons are at the place of the package's: their files, their table, their supervisor.

In:  queues and compute resources, as for HeadNode. Out: the same head node with the INI files of the daemons as the cookbook writes
them, the status table with its item COMPUTE_FLEET, and functions that do what supervisord, the cookbook's recipe and the pcluster
command do there.
Never: starts a daemon by itself.
"""

import datetime
import json
import os
import shutil
import signal
import threading
import time

import processes
from cloud import REGION
from head_node import CLUSTER, DOMAIN, HEAD_IP, HEAD_NAME, HEARTBEAT, TABLE, HeadNode
from lab import PATH, LabError

STATUS_TABLE = f"parallelcluster-{CLUSTER}"
KEY = {"Id": {"S": "COMPUTE_FLEET"}}
FLEET_MANAGER = "slurm_fleet_status_manager"
HEAD_ID = "i-0a11e57000c0ffee1"
CONFS = {"clustermgtd": "parallelcluster_clustermgtd.conf", "clusterstatusmgtd": "clusterstatusmgtd.conf"}
# On a compute node the cookbook starts slurmd, looks after three seconds whether it is there, and says then that a static node is up.
# A slow machine's slurmd is there, but may not have registered; said before that it does harm (docs/slurm-notes.md).
NODE_START_UP = (
    "os.system(f\"(sleep 3; until scontrol show node -o {name} | grep State= | grep -qv POWERED_DOWN; do sleep 1; done; "
    "scontrol update nodename={name} state=resume reason='Node start up') &\") if '-st-' in name else None"
)


class DaemonsHeadNode(HeadNode):
    """`clustermgtd` are further lines of [clustermgtd]."""

    def __init__(self, name, resources, clustermgtd="", **options):
        static = ",".join(node for resource in resources for node in resource.static_nodes)
        # As ParallelCluster's slurm.conf.
        conf = {"ReconfigFlags": "KeepPartState", "ReturnToService": 1, "SuspendExcNodes": static, "MessageTimeout": 60}
        super().__init__(name, resources, heart=False, on_boot=NODE_START_UP, extra=conf, **options)
        self.clustermgtd_lines = clustermgtd
        self.statuses = None

    def _require(self):
        super()._require()
        if not (self.programs_dir / FLEET_MANAGER).exists():
            raise LabError(f"missing: {self.programs_dir / FLEET_MANAGER}; `make demo` and `make test` install and build what is needed")

    def _write_programs(self, owner):
        super()._write_programs(owner)
        for name in (*CONFS, FLEET_MANAGER, "slurm-ec2"):
            shutil.copy(self.programs_dir / name, self.root / "programs/bin" / name)
        # supervisord starts the cookbook's clusterstatusmgtd with Python, so it starts ours with it (docs/parallelcluster.md).
        program = str(self.root / "programs/bin/clusterstatusmgtd")
        script = f'import os\nos.execv("{program}", ["clusterstatusmgtd"])\n'
        (self.root / "programs/clusterstatusmgtd.py").write_text(script, encoding="utf-8")

    def _stop(self, failed):
        if self.statuses:
            self.statuses.stop()
        super()._stop(failed)

    def _write_tables(self):
        super()._write_tables()
        self.dynamodb.create_table(
            TableName=STATUS_TABLE,
            BillingMode="PAY_PER_REQUEST",
            AttributeDefinitions=[{"AttributeName": "Id", "AttributeType": "S"}],
            KeySchema=[{"AttributeName": "Id", "KeyType": "HASH"}],
        )
        now = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime())
        data = {"status": {"S": "RUNNING"}, "lastStatusUpdatedTime": {"S": now}}
        self.dynamodb.put_item(TableName=STATUS_TABLE, Item={**KEY, "Data": {"M": data}})
        self.statuses = Statuses(self)

    def _write_files(self):
        super()._write_files()
        files = self.root / "pcluster"
        texts = {
            CONFS["clustermgtd"]: self._clustermgtd_conf(files),
            CONFS["clusterstatusmgtd"]: self._clusterstatusmgtd_conf(),
            f"parallelcluster_{FLEET_MANAGER}.conf": f"[{FLEET_MANAGER}]\ncluster_name = {CLUSTER}\nregion = {REGION}\nproxy = NONE\n",
        }
        for name, text in texts.items():
            (files / name).write_text(text, encoding="utf-8")
        partitions = {queue: ",".join(group.hostlist for group in self.groups if group.queue == queue) for queue in self.queues()}
        folder = self.root / "etc/pcluster"
        folder.mkdir()
        (folder / "parallelcluster_partition_nodelist_mapping.json").write_text(json.dumps(partitions, indent=4), encoding="utf-8")
        # The file is the programs' user's, the folder root's.
        self.status_file = self.root / "shared/computefleet-status.json"
        self.status_file.parent.mkdir()
        self.status_file.write_text("{}", encoding="utf-8")
        self.status_file.chmod(0o755)
        os.chown(self.status_file, self.admin_user.pw_uid, self.admin_user.pw_gid)

    def _clustermgtd_conf(self, files):
        return f"""[clustermgtd]
cluster_name = {CLUSTER}
region = {REGION}
proxy = NONE
heartbeat_file_path = {files}/{HEARTBEAT}
dynamodb_table = {TABLE}
hosted_zone = {self.zone}
dns_domain = {DOMAIN}
use_private_hostname = false
head_node_private_ip = {HEAD_IP}
head_node_hostname = {HEAD_NAME}
node_replacement_timeout = 1500
insufficient_capacity_timeout = 600
compute_console_logging_enabled = true
compute_console_logging_max_sample_size = 1
compute_console_wait_time = 300
instance_id = {HEAD_ID}
instance_info_retrieval_timeout = 90
fleet_config_file = {files}/fleet-config.json
run_instances_overrides = {files}/run_instances_overrides.json
{self.clustermgtd_lines}"""

    def _clusterstatusmgtd_conf(self):
        return f"""[clusterstatusmgtd]
cluster_name = {CLUSTER}
region = {REGION}
proxy = NONE
dynamodb_table = {STATUS_TABLE}
computefleet_status_path = {self.root}/shared/computefleet-status.json
"""

    def queues(self):
        return list(dict.fromkeys(group.queue for group in self.groups))

    # supervisord.

    def supervise(self, name):
        """`supervisorctl start`: as the programs' user; what it prints goes to a file of the log's name, which is root's."""
        user = ["setpriv", f"--reuid={self.admin_user.pw_uid}", f"--regid={self.admin_user.pw_gid}", "--init-groups"]
        environment = {"PATH": PATH, "HOME": str(self.root), "USER": self.accounts.name, **self.environment(CONFS[name])}
        command = {"clusterstatusmgtd": ["/usr/bin/python3", self.root / "programs/clusterstatusmgtd.py"]}
        program = command.get(name, [self.root / "programs/bin" / name])
        self.daemons[name] = processes.start([*user, *program], self.root / "ec2-log" / name, environment)
        self.watch.say(f"{name} started")

    def end(self, name):
        """`supervisorctl stop`, which waits for ten seconds and kills then. How long it takes is no question here."""
        process = self.daemons.pop(name)
        process.send_signal(signal.SIGTERM)
        self.expect(process.wait(240) == 0, f"{name} ended with {process.returncode}")
        self.watch.say(f"{name} ended")

    def launched_by_the_package(self, node):
        """What the package's clustermgtd leaves behind: a static node with its instance, its item and its address."""
        resource = next(resource for resource in self.groups if node in resource.static_nodes)
        self.command(["scontrol", "update", f"nodename={node}", "state=down", "reason=Static node maintenance: unhealthy node is being replaced"])
        tags = {
            "Name": "Compute",
            "parallelcluster:cluster-name": CLUSTER,
            "parallelcluster:node-type": "Compute",
            "parallelcluster:queue-name": resource.queue,
            "parallelcluster:compute-resource-name": resource.resource,
        }
        instance = self.cloud.client().run_instances(
            LaunchTemplate={"LaunchTemplateName": resource.launch_template},
            SubnetId=self.cloud.subnet,
            MinCount=1,
            MaxCount=1,
            TagSpecifications=[{"ResourceType": "instance", "Tags": [{"Key": key, "Value": value} for key, value in tags.items()]}],
        )["Instances"][0]
        item = {"Id": node, "InstanceId": instance["InstanceId"], "HeadNodePrivateIp": HEAD_IP, "HeadNodeHostname": HEAD_NAME}
        self.dynamodb.put_item(TableName=TABLE, Item={key: {"S": value} for key, value in item.items()})
        address = f"nodeaddr={instance['PrivateIpAddress']}"
        self.command(["scontrol", "update", f"nodename={node}", address, f"nodehostname={node}"])
        self.watch.say(f"{instance['InstanceId']} of {node} is the package's")
        return instance["InstanceId"]

    def log(self, name):
        return (self.root / "ec2-log" / name).read_text(encoding="utf-8").splitlines()

    def events(self):
        """Those of clustermgtd, as objects. The last line may be half written."""
        path = self.root / "ec2-log/clustermgtd.events"
        lines = path.read_text(encoding="utf-8").splitlines(keepends=True) if path.exists() else []
        return [json.loads(line) for line in lines if line.endswith("\n")]

    def as_admin(self, *arguments):
        """`slurm-ec2 …` as the programs' user; its stdout."""
        environment = [f"{key}={value}" for key, value in self.environment("parallelcluster_slurm_resume.conf").items()]
        return self.command(["sudo", "-n", "-u", self.accounts.name, *environment, self.root / "programs/bin/slurm-ec2", *arguments])

    # The fleet.

    def status(self, client=None):
        """The item's map, as texts."""
        item = (client or self.dynamodb).get_item(TableName=STATUS_TABLE, Key=KEY, ConsistentRead=True)["Item"]
        return {key: value["S"] for key, value in item["Data"]["M"].items()}

    def set_status(self, old, new):
        """As the pcluster command does it, and the cookbook's clusterstatusmgtd too: if the status is still the old one."""
        self.dynamodb.update_item(
            TableName=STATUS_TABLE,
            Key=KEY,
            UpdateExpression="SET #data.#status = :new, #data.#time = :now",
            ConditionExpression="#data.#status = :old",
            ExpressionAttributeNames={"#data": "Data", "#status": "status", "#time": "lastStatusUpdatedTime"},
            ExpressionAttributeValues={
                ":old": {"S": old},
                ":new": {"S": new},
                ":now": {"S": str(datetime.datetime.now(datetime.timezone.utc))},
            },
        )
        self.watch.say(f"fleet status set from {old} to {new}")

    def by_recipe(self, request, under_way, done, stops_clustermgtd):
        """The package's route: what its clusterstatusmgtd and the recipe that this runs do about a request that is there. Not every
        version of the recipe stops clustermgtd meanwhile."""
        self.set_status(request, under_way)
        self.status_file.write_text(json.dumps({**self.status(), "status": request}), encoding="utf-8")
        if stops_clustermgtd:
            self.end("clustermgtd")
        environment = [f"{key}={value}" for key, value in self.environment(f"parallelcluster_{FLEET_MANAGER}.conf").items()]
        program = self.root / "programs/bin" / FLEET_MANAGER
        self.command(["sudo", "-n", "-u", self.accounts.name, *environment, program, "-cf", self.status_file], timeout=900)
        self.watch.say(f"{FLEET_MANAGER} has done {request}")
        if stops_clustermgtd:
            self.supervise("clustermgtd")
        self.set_status(under_way, done)

    def partition_states(self):
        """Of all partitions: name → UP or INACTIVE."""
        found = {}
        for line in self.command(["scontrol", "show", "partitions", "-o"]).splitlines():
            words = dict(word.split("=", 1) for word in line.split() if "=" in word)
            found[words["PartitionName"]] = words["State"]
        return found


class Statuses:
    """Every status that the fleet had, in order."""

    def __init__(self, lab):
        self.lab = lab
        self.seen = []
        self.enough = threading.Event()
        self.thread = threading.Thread(target=self._run, daemon=True, name="fleet-status")
        self.thread.start()

    def stop(self):
        self.enough.set()
        self.thread.join()

    def _run(self):
        client = self.lab.cloud.client("dynamodb")
        while not self.enough.wait(0.1):
            try:
                status = self.lab.status(client)["status"]
            except Exception:  # noqa: BLE001 - moto may be going already; a status that was missed is missing in the list
                continue
            if not self.seen or self.seen[-1] != status:
                self.seen.append(status)
