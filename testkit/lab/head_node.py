"""A lab that looks like a ParallelCluster head node: its files, its two users, its wrappers, its tables, its heartbeat.

In:  queues and compute resources. Out: a running cluster whose slurmctld calls wrappers as SlurmUser, which run our programs as
another user through sudo, on copies of the resume file. DynamoDB and Route 53 are moto's, as EC2 is. Stand-ins for compute nodes
ask DynamoDB for their name.
Never: writes below /opt or /etc, but for one file in /etc/sudoers.d (accounts.py).
"""

import json
import os
import pwd
import shutil
import sys
import time
from dataclasses import dataclass

from accounts import Accounts
from cloud import INSTANCE_TYPE, REGION
from heart import Heart
from lab import PATH, Lab, LabError

CLUSTER = "lab"
TABLE = f"parallelcluster-slurm-{CLUSTER}"
DOMAIN = f"{CLUSTER}.pcluster."
HEAD_IP = "10.40.0.17"
HEAD_NAME = "ip-10-40-0-17.eu-west-1.compute.internal"
SLURM_USER = "slurm"
HEARTBEAT = ".slurm_plugin/clustermgtd_heartbeat"

WRAPPER = """#!/bin/bash
# slurmctld 22.05 starts it with descriptors 0 to 2 closed.
exec </dev/null >>{log} 2>&1
/bin/date "+%s.%N {name} $1" >>{calls}
{copy}exec_as() {{ /usr/bin/sudo -n -u {admin} {resume_file}{environment} {program} "$@"; }}
exec_as "$@"
"""
# slurmctld keeps the file for ten seconds at most, and it belongs to SlurmUser.
COPY = """copy=$(/bin/mktemp {folder}/resume-XXXXXX)
trap '/bin/rm -f "$copy"' EXIT
/bin/cat "$SLURM_RESUME_FILE" >"$copy"
/bin/chgrp {admin} "$copy"
/bin/chmod g+r "$copy"
"""
# What the boot recipe of a compute node does: its own id from metadata, its name from the table's index.
BOOT = """#!{python} -B
import os, sys, time, urllib.request
import boto3
instance = os.environ["SLURM_EC2_LAB_INSTANCE"]
table = boto3.client("dynamodb", endpoint_url="{endpoint}", region_name="{region}", aws_access_key_id="lab",
                     aws_secret_access_key="lab")
for _ in range(120):
    found = table.query(TableName="{table}", IndexName="InstanceId", KeyConditionExpression="InstanceId = :i",
                        ExpressionAttributeValues={{":i": {{"S": instance}}}})["Items"]
    if found:
        name = found[0]["Id"]["S"]
        {on_boot}
        os.execvp("slurmd", ["slurmd", "-D", "-f", "{conf}", "-N", name])
    time.sleep(0.25)
sys.exit(f"no item names {{instance}}")
"""


@dataclass(frozen=True)
class Resource:
    """A compute resource, in the form of the lab's groups: its queue is a partition."""

    queue: str
    resource: str
    static: int
    dynamic: int
    api: str = "run-instances"
    image: str = "good"
    template_exists: bool = True
    resume_timeout: int = 0

    @property
    def name(self):
        return self.queue

    def _names(self, kind, count):
        return [f"{self.queue}-{kind}-{self.resource}-{number}" for number in range(1, count + 1)]

    @property
    def static_nodes(self):
        return self._names("st", self.static)

    @property
    def dynamic_nodes(self):
        return self._names("dy", self.dynamic)

    @property
    def nodes(self):
        return self.static_nodes + self.dynamic_nodes

    @property
    def count(self):
        return self.static + self.dynamic

    @property
    def hostlist(self):
        parts = [(kind, count) for kind, count in (("st", self.static), ("dy", self.dynamic)) if count]
        return ",".join(f"{self.queue}-{kind}-{self.resource}-[1-{count}]" for kind, count in parts)

    @property
    def launch_template(self):
        return f"{CLUSTER}-{self.queue}-{self.resource}"

    @property
    def node_options(self):
        return f"Feature={self.resource}"


class HeadNode(Lab):
    """`settings` are further lines of [slurm_resume]. The package's clustermgtd is a heartbeat alone; without `heart` there is none.

    `on_boot` is a statement of a compute node's boot that comes before its slurmd; `name` is the node."""

    def __init__(self, name, resources, settings="", heart=True, on_boot="pass", **options):
        super().__init__(name, resources, user=SLURM_USER, resume_fail="slurm_suspend", **options)
        self.settings = settings
        self.accounts = Accounts(SLURM_USER)
        self.has_heart, self.on_boot = heart, on_boot
        self.heart = self.admin_user = None

    def _require(self):
        super()._require()
        missing = self.accounts.missing()
        try:
            pwd.getpwnam(SLURM_USER)
        except KeyError:
            missing.append(f"{SLURM_USER} (user)")
        if missing:
            raise LabError(f"missing: {', '.join(missing)}; scripts/install-deps installs what is needed")

    def _stop(self, failed):
        try:
            if self.heart:
                self.heart.stop()
            super()._stop(failed)
        finally:
            self.accounts.remove()

    def _write_programs(self, owner):
        folder = self.root / "programs"
        (folder / "bin").mkdir()
        for name in ("slurm_resume", "slurm_suspend"):
            shutil.copy(self.programs_dir / name, folder / "bin" / name)
        self._write_slurm()
        programs = [folder / "bin" / name for name in ("slurm_resume", "slurm_suspend")]
        admin = self.admin_user = self.accounts.create(self.root, [self.root / "slurm/bin/scontrol"], programs)
        for part in ("state", "ec2-log"):
            os.chown(self.root / part, admin.pw_uid, admin.pw_gid)
        self._write_tables()
        self._write_files()
        heartbeat = self.root / "pcluster" / HEARTBEAT
        heartbeat.parent.mkdir()
        os.chown(heartbeat.parent, admin.pw_uid, admin.pw_gid)
        if self.has_heart:
            self.heart = Heart(heartbeat, admin)
            self.heart.start()
        share = self.root / "share"
        share.mkdir()
        os.chown(share, owner.pw_uid, admin.pw_gid)
        share.chmod(0o750)
        for path in (folder / "calls.log", self.root / "log/wrappers.log"):
            path.touch()
            os.chown(path, owner.pw_uid, owner.pw_gid)
        for name in ("slurm_resume", "slurm_suspend"):
            self._write_wrapper(name, owner)
        self.node_boot = self.root / "compute-node-boot"
        self.node_boot.write_text(
            BOOT.format(
                python=sys.executable,
                endpoint=self.cloud.endpoint,
                region=REGION,
                table=TABLE,
                conf=self.conf,
                on_boot=self.on_boot,
            ),
            encoding="utf-8",
        )
        self.node_boot.chmod(0o755)

    def _write_slurm(self):
        """As /opt/slurm: bin, and etc beside it. scontrol knows its slurm.conf by itself, for sudo takes the environment away."""
        (self.root / "slurm/bin").mkdir(parents=True)
        (self.root / "slurm/etc").symlink_to(self.root / "etc")
        scontrol = self.root / "slurm/bin/scontrol"
        scontrol.write_text(f'#!/bin/sh\nSLURM_CONF={self.conf} exec {shutil.which("scontrol", path=PATH)} "$@"\n', encoding="utf-8")
        scontrol.chmod(0o755)

    def _write_tables(self):
        self.dynamodb = self.cloud.client("dynamodb")
        self.route53 = self.cloud.client("route53")
        key = [{"AttributeName": name, "AttributeType": "S"} for name in ("Id", "InstanceId")]
        self.dynamodb.create_table(
            TableName=TABLE,
            BillingMode="PAY_PER_REQUEST",
            AttributeDefinitions=key,
            KeySchema=[{"AttributeName": "Id", "KeyType": "HASH"}],
            GlobalSecondaryIndexes=[
                {
                    "IndexName": "InstanceId",
                    "KeySchema": [{"AttributeName": "InstanceId", "KeyType": "HASH"}],
                    "Projection": {"ProjectionType": "ALL"},
                }
            ],
        )
        zone = self.route53.create_hosted_zone(
            Name=DOMAIN,
            CallerReference=str(time.time()),
            VPC={"VPCRegion": REGION, "VPCId": self.cloud.vpc},
            HostedZoneConfig={"PrivateZone": True},
        )
        self.zone = zone["HostedZone"]["Id"].removeprefix("/hostedzone/")

    def _write_files(self):
        files = self.root / "pcluster"
        files.mkdir()
        fleet, overrides = {}, {}
        for group in self.groups:
            resource = {"Api": group.api, "CapacityType": "on-demand", "Instances": [{"InstanceType": INSTANCE_TYPE}]}
            if group.api == "create-fleet":
                resource["Networking"] = {"SubnetIds": [self.cloud.subnet]}
            else:
                # moto gives addresses of the subnet only when the request names it.
                overrides.setdefault(group.queue, {})[group.resource] = {"SubnetId": self.cloud.subnet}
            fleet.setdefault(group.queue, {})[group.resource] = resource
        texts = {
            "fleet-config.json": json.dumps(fleet, indent=4),
            "run_instances_overrides.json": json.dumps(overrides),
            "parallelcluster_slurm_resume.conf": self._resume_conf(files),
            "parallelcluster_slurm_suspend.conf": f"[slurm_suspend]\nclustermgtd_heartbeat_file_path = {files}/{HEARTBEAT}\n",
        }
        for name, text in texts.items():
            (files / name).write_text(text, encoding="utf-8")

    def _resume_conf(self, files):
        return f"""[slurm_resume]
cluster_name = {CLUSTER}
region = {REGION}
proxy = NONE
dynamodb_table = {TABLE}
hosted_zone = {self.zone}
dns_domain = {DOMAIN}
use_private_hostname = false
head_node_private_ip = {HEAD_IP}
head_node_hostname = {HEAD_NAME}
clustermgtd_heartbeat_file_path = {files}/{HEARTBEAT}
instance_id = i-0a11e57000c0ffee1
scaling_strategy = all-or-nothing
fleet_config_file = {files}/fleet-config.json
run_instances_overrides = {files}/run_instances_overrides.json
create_fleet_overrides = {files}/create_fleet_overrides.json
{self.settings}
[slurm_ec2]
state_dir = {self.root}/state
log_dir = {self.root}/ec2-log
endpoint_url = {self.cloud.endpoint}
request_bucket = false
"""

    def environment(self, conf):
        """What a program finds here by itself on a real head node: its file, Slurm, the role."""
        return {
            "CONFIG_FILE": str(self.root / "pcluster" / conf),
            "SLURM_BINARIES_DIR": str(self.root / "slurm/bin"),
            "AWS_ACCESS_KEY_ID": "lab",
            "AWS_SECRET_ACCESS_KEY": "lab",
        }

    def _write_wrapper(self, name, owner):
        environment = self.environment(f"parallelcluster_{name}.conf")
        resumes = name == "slurm_resume"
        wrapper = self.root / "programs" / name
        wrapper.write_text(
            WRAPPER.format(
                name=name,
                log=self.root / "log/wrappers.log",
                calls=self.root / "programs/calls.log",
                copy=COPY.format(folder=self.root / "share", admin=self.accounts.name) if resumes else "",
                resume_file='SLURM_RESUME_FILE="$copy" ' if resumes else "",
                admin=self.accounts.name,
                environment=" ".join(f"{key}={value}" for key, value in environment.items()),
                program=self.root / "programs/bin" / name,
            ),
            encoding="utf-8",
        )
        os.chown(wrapper, owner.pw_uid, owner.pw_gid)
        wrapper.chmod(0o744)

    # What an admin asks, and what the cluster's compute nodes and users read.

    def check(self):
        """`slurm-ec2 check`, run as the user of the programs."""
        environment = [f"CONFIG_FILE={self.root}/pcluster/parallelcluster_slurm_resume.conf", f"SLURM_BINARIES_DIR={self.root}/slurm/bin"]
        program = self.root / "programs/bin/slurm-ec2"
        shutil.copy(self.programs_dir / "slurm-ec2", program)
        return self.command(["sudo", "-n", "-u", self.accounts.name, *environment, program, "check"])

    def items(self):
        """Every item of the node table, by node."""
        pages = self.dynamodb.get_paginator("scan").paginate(TableName=TABLE)
        return {item["Id"]["S"]: item for page in pages for item in page["Items"]}

    def records(self):
        """Every A record of the zone: name → (TTL, addresses)."""
        pages = self.route53.get_paginator("list_resource_record_sets").paginate(HostedZoneId=self.zone)
        sets = [record for page in pages for record in page["ResourceRecordSets"] if record["Type"] == "A"]
        return {record["Name"]: (record["TTL"], [value["Value"] for value in record["ResourceRecords"]]) for record in sets}
