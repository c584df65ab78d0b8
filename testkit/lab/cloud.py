"""EC2 (and DynamoDB and Route 53) as the lab has it: moto's server with a network whose addresses this host answers to.

In:  a port. Out: a running server with a VPC in 127.20.0.0/16, launch templates, and its list of instances.
Never: reaches a real AWS endpoint; the credentials are made up.

moto gives addresses inside the subnet only when the request itself names the subnet (in a launch template alone it is
ignored), so the groups of the lab's configuration name it: `subnets = […]`.
"""

import sys
import time
import urllib.request
from pathlib import Path

import boto3
from botocore.config import Config

import processes

REGION = "eu-west-1"
NETWORK = "127.20.0.0/16"
SUBNET = "127.20.1.0/24"
INSTANCE_TYPE = "c5.large"
ALIVE = ("pending", "running", "stopping", "stopped")


class Cloud:
    def __init__(self, port, log_path):
        self.port = port
        self.log_path = log_path
        self.endpoint = f"http://127.0.0.1:{port}"
        self.process = None
        self.vpc = self.subnet = None
        self.images = {}

    def start(self):
        server = Path(sys.executable).parent / "moto_server"
        self.process = processes.start([server, "-H", "127.0.0.1", "-p", self.port], self.log_path)
        deadline = time.monotonic() + 240
        while True:
            try:
                urllib.request.urlopen(f"{self.endpoint}/moto-api/data.json", timeout=5).close()
                break
            except OSError as error:
                if self.process.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError(f"moto did not start ({error}); see {self.log_path}") from error
                time.sleep(0.1)
        ec2 = self.client()
        self.vpc = ec2.create_vpc(CidrBlock=NETWORK)["Vpc"]["VpcId"]
        self.subnet = ec2.create_subnet(VpcId=self.vpc, CidrBlock=SUBNET, AvailabilityZone=f"{REGION}a")["Subnet"]["SubnetId"]
        # What an instance does at boot goes by its image.
        images = sorted(image["ImageId"] for image in ec2.describe_images()["Images"])
        self.images = {"good": images[0], "dark": images[1]}

    def client(self, service="ec2"):
        """Every thread takes one of its own."""
        return boto3.client(
            service,
            endpoint_url=self.endpoint,
            region_name=REGION,
            aws_access_key_id="lab",
            aws_secret_access_key="lab",
            # A scenario may have stopped moto for a while.
            config=Config(retries={"max_attempts": 5}, connect_timeout=30, read_timeout=300, proxies={}),
        )

    def create_template(self, name, image):
        self.client().create_launch_template(
            LaunchTemplateName=name,
            LaunchTemplateData={"ImageId": self.images[image], "InstanceType": INSTANCE_TYPE},
        )

    def instances(self, client):
        """Every instance moto has ever launched, by id."""
        pages = client.get_paginator("describe_instances").paginate()
        return {
            instance["InstanceId"]: {
                "id": instance["InstanceId"],
                "state": instance["State"]["Name"],
                "address": instance.get("PrivateIpAddress"),
                "image": instance["ImageId"],
                "launched": int(instance["LaunchTime"].timestamp()),
                "tags": {tag["Key"]: tag["Value"] for tag in instance.get("Tags", [])},
            }
            for page in pages
            for reservation in page["Reservations"]
            for instance in reservation["Instances"]
        }
