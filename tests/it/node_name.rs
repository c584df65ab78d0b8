//! `slurm-ec2 node-name` on an instance that knows nothing but its id and address: each place that may know its name, and none.

use std::fs;

use serde_json::json;
use slurm_ec2_testkit::dynamodb::{self, Table};
use slurm_ec2_testkit::ec2::{Behaviour, Rule, Seed};
use slurm_ec2_testkit::imds::{Endpoint, Fault};

use crate::crash::stage::wait_until;
use crate::moto::Moto;
use crate::site::{Ran, Site, finished};

const ID: &str = "i-0ec20000000000001";
const ADDRESS: &str = "10.0.0.5";
const UP: &str = "IDLE+CLOUD+NOT_RESPONDING+POWERING_UP";
const TAG: &str = "tags/instance/slurm-ec2:node";

/// EC2 is asked after half of it, and no second time within the rest, which is longer than any answer takes.
const ONE_QUESTION_TO_EC2: &str = "15s";

struct Instance {
    site: Site,
    imds: Endpoint,
}

impl Instance {
    /// `aws` are lines of `[aws]`, `own` of `[computemgtd]`, `more` further sections.
    fn with(aws: &str, own: &str, more: &str) -> Self {
        let instance = Self { site: Site::new(Behaviour::default()), imds: Endpoint::start() };
        instance.imds.set("local-ipv4", ADDRESS);
        let (root, imds, ec2) = (instance.site.dir.path().display(), instance.imds.url(), instance.site.ec2.url());
        let config = format!(
            "cluster = \"hpc\"\nregion = \"eu-west-1\"\n\
             [aws]\nendpoint_url = \"{ec2}\"\ncredentials_file = \"{root}/credentials\"\nconfig_file = \"{root}/aws-config\"\n{aws}\
             [slurm]\nbin_dir = \"{root}/bin\"\nconf = \"{root}/slurm.conf\"\n\
             [computemgtd]\nmetadata_endpoint = \"{imds}\"\nnode_name_file = \"{root}/node-name\"\n{own}{more}\
             [[group]]\nname = \"c5\"\nnodes = \"c5-[1-9]\"\nlaunch_template = {{ name = \"hpc-c5\", version = \"1\" }}\n"
        );
        instance.site.write("slurm-ec2.toml", &config);
        // Somebody else's node.
        instance.nodes(&[("c5-1", "10.0.0.50", UP)]);
        instance
    }

    fn new() -> Self {
        Self::with("", "", "")
    }

    /// What slurmctld shows: name, address, state.
    fn nodes(&self, nodes: &[(&str, &str, &str)]) {
        let text: String = nodes
            .iter()
            .map(|(name, addr, state)| {
                format!("NodeName={name} CoresPerSocket=1 \n   NodeAddr={addr} NodeHostName={name} \n   State={state} \n\n")
            })
            .collect();
        self.site.scontrol("nodes", &text);
    }

    fn ask(&self, more: &[&str]) -> Ran {
        self.site.run("slurm-ec2", &[&["node-name", "--timeout", "5m"], more].concat())
    }
}

#[track_caller]
fn assert_is(ran: &Ran, name: &str) {
    assert_eq!((ran.code, ran.stdout.as_str()), (Some(0), format!("{name}\n").as_str()), "{}", ran.stderr);
}

#[test]
fn by_its_tag_in_instance_metadata_and_kept_for_computemgtd() {
    let instance = Instance::new();
    instance.imds.set(TAG, "c5-3");
    // Early in the boot.
    instance.imds.fail_tokens([Fault::Drop, Fault::Status(503)]);
    let ran = instance.ask(&["--save"]);
    assert_is(&ran, "c5-3");
    assert_eq!(fs::read_to_string(instance.site.path("node-name")).unwrap(), "c5-3\n");
    assert_eq!(instance.imds.without_token(), 0);
    // A tag that anybody could have written is no argument for slurmd.
    let instance = Instance::new();
    instance.imds.set(TAG, "-D c5-3");
    instance.nodes(&[("c5-4", ADDRESS, UP)]);
    assert_is(&instance.ask(&[]), "c5-4");
}

#[test]
fn by_the_mapping_on_a_shared_folder() {
    let instance = Instance::with("", "shared_mapping = \"/nonexistent\"\n", "");
    let config = fs::read_to_string(instance.site.path("slurm-ec2.toml")).unwrap();
    let path = instance.site.path("mapping.json");
    instance.site.write("slurm-ec2.toml", &config.replace("/nonexistent", &path.display().to_string()));
    let mapping = json!({"version": 1, "cluster": "hpc", "nodes": {
        "c5-1": {"state": "running", "instance_id": "i-0ec20000000000009", "private_ip": ADDRESS},
        "c5-5": {"state": "running", "instance_id": ID, "private_ip": ADDRESS}}, "condemned": {}});
    instance.site.write("mapping.json", &mapping.to_string());
    assert_is(&instance.ask(&[]), "c5-5");
}

#[test]
fn by_parallelclusters_table_and_its_index() {
    let table = Table::new("parallelcluster-slurm-orchard", "Id").index("InstanceId", "InstanceId").only(&["Query"]);
    let dynamodb = dynamodb::Endpoint::start(dynamodb::Behaviour { tables: vec![table], ..dynamodb::Behaviour::default() });
    for (node, id) in [("apple-dy-core-7", ID), ("apple-dy-core-8", "i-0ec20000000000008")] {
        let item = json!({"Id": {"S": node}, "InstanceId": {"S": id}});
        dynamodb.put("parallelcluster-slurm-orchard", item.as_object().unwrap().clone());
    }
    let section = "[node_table]\ntable = \"parallelcluster-slurm-orchard\"\nhead_node_private_ip = \"10.40.0.17\"\nhead_node_hostname = \"head\"\n";
    let instance = Instance::with(&format!("dynamodb_endpoint_url = \"{}\"\n", dynamodb.url()), "", section);
    assert_is(&instance.ask(&[]), "apple-dy-core-7");
    assert!(dynamodb.requests().iter().all(|request| request.operation == "Query"));
}

#[test]
fn by_slurmctlds_word_for_its_address() {
    let instance = Instance::new();
    instance.nodes(&[("old", ADDRESS, "IDLE+CLOUD+POWERED_DOWN"), ("c5-2", ADDRESS, UP), ("c5-1", "10.0.0.50", UP)]);
    assert_is(&instance.ask(&[]), "c5-2");
    // Addresses that are given are those that count.
    assert_is(&instance.ask(&["--address", "192.168.7.1", "--address", "10.0.0.50"]), "c5-1");
}

#[test]
fn by_its_tag_in_ec2() {
    let instance = Instance::new();
    let tags = [("slurm-ec2:node".to_owned(), "c5-8".to_owned())].into();
    let ids = instance.site.ec2.seed(&Seed { tags, ..Seed::default() });
    instance.imds.set("instance-id", &ids[0]);
    assert_is(&instance.ask(&[]), "c5-8");
    // It needs one permission in the instance's role, and a narrow one.
    let actions: Vec<String> = instance.site.ec2.requests().into_iter().map(|request| request.action).collect();
    assert_eq!(actions, ["DescribeTags"]);
}

#[test]
fn by_its_tag_in_ec2_as_moto_tells_it() {
    let moto = Moto::start();
    let launched = moto.call(
        "Action=RunInstances&ImageId=ami-12c6146b&MinCount=1&MaxCount=1&TagSpecification.1.ResourceType=instance\
         &TagSpecification.1.Tag.1.Key=slurm-ec2:node&TagSpecification.1.Tag.1.Value=c5-9\
         &TagSpecification.1.Tag.2.Key=Name&TagSpecification.1.Tag.2.Value=x",
    );
    let id = launched.split_once("<instanceId>").and_then(|(_, rest)| rest.split_once("</instanceId>")).unwrap().0;
    let instance = Instance::new();
    let config = fs::read_to_string(instance.site.path("slurm-ec2.toml")).unwrap();
    instance.site.write("slurm-ec2.toml", &config.replace(&instance.site.ec2.url(), &moto.url()));
    instance.imds.set("instance-id", id);
    assert_is(&instance.ask(&[]), "c5-9");
}

/// B125.
#[test]
fn a_permission_that_is_missing_is_named() {
    for message in [
        // EC2 says it in one way or the other.
        "You are not authorized to perform this operation.",
        "You are not authorized to perform this operation. User: arn:aws:sts::1:assumed-role/node/i-1 is not authorized to perform: \
         ec2:DescribeTags because no identity-based policy allows the ec2:DescribeTags action",
    ] {
        let instance = Instance::new();
        let tags = [("slurm-ec2:node".to_owned(), "c5-8".to_owned())].into();
        instance.imds.set("instance-id", &instance.site.ec2.seed(&Seed { tags, ..Seed::default() })[0]);
        instance.site.ec2.add_rules([Rule::on("DescribeTags").error_text("UnauthorizedOperation", 403, message)]);
        let ran = instance.site.run("slurm-ec2", &["node-name", "--timeout", ONE_QUESTION_TO_EC2]);
        let said = "tag slurm-ec2:node in EC2 (asked 1 times): the permission ec2:DescribeTags is missing: DescribeTags: \
                    UnauthorizedOperation: You are not authorized";
        assert!(ran.code == Some(75) && ran.stderr.contains(said), "{:?} {}", ran.code, ran.stderr);
    }
}

#[test]
fn a_name_that_comes_late_is_waited_for() {
    let instance = Instance::new();
    let child = instance.site.spawn("slurm-ec2", &["node-name", "--timeout", "5m"]);
    wait_until("it asks again", || instance.imds.count(TAG) >= 2);
    instance.imds.set(TAG, "c5-6");
    assert_is(&finished(child.wait_with_output().unwrap()), "c5-6");
}

/// B125.
#[test]
fn without_a_name_it_says_what_was_asked_and_what_each_said() {
    let instance = Instance::with("", "shared_mapping = \"/nonexistent/mapping.json\"\n", "");
    instance.site.ec2.seed(&Seed::default());
    let ran = instance.site.run("slurm-ec2", &["node-name", "--timeout", ONE_QUESTION_TO_EC2, "--save"]);
    assert_eq!((ran.code, ran.stdout.as_str()), (Some(75), ""), "{}", ran.stderr);
    for text in [
        "no name found in",
        &format!("this instance: {ID}, addresses: "),
        "tag slurm-ec2:node in instance metadata (asked",
        "InstanceMetadataTags=enabled",
        "have it (node_tags = true in [launch] on the head node)",
        "mapping /nonexistent/mapping.json (asked",
        "No such file or directory",
        "slurmctld, by NodeAddr (asked",
        "no node that is up or coming up has NodeAddr of (",
        "tag slurm-ec2:node in EC2 (asked 1 times): the instance has no such tag",
    ] {
        assert!(ran.stderr.contains(text), "{text}: {}", ran.stderr);
    }
    // The machine of this test adds its own, before or behind it.
    for list in ["addresses: ", "NodeAddr of ("] {
        let (_, rest) = ran.stderr.rsplit_once(list).unwrap();
        let listed = rest.lines().next().unwrap().trim_end_matches(')');
        assert!(listed.split(", ").any(|address| address == ADDRESS), "{list}: {}", ran.stderr);
    }
    assert!(!instance.site.path("node-name").exists());
    // slurmctld that hangs, metadata that hangs: still in time.
    instance.site.scontrol("hang", "");
    instance.imds.fail_tokens([Fault::Hang; 20]);
    let ran = instance.site.run("slurm-ec2", &["node-name", "--timeout", "1s"]);
    assert!(ran.code == Some(75) && ran.stderr.contains("no name found"), "{:?} {}", ran.code, ran.stderr);
}

/// The end cuts a question short: that says less than the answer before it.
#[test]
fn a_place_that_falls_silent_keeps_what_it_said() {
    let instance = Instance::new();
    let child = instance.site.spawn("slurm-ec2", &["node-name", "--timeout", "8s"]);
    let questions = || instance.site.scontrol_calls().iter().filter(|call| call.contains("show nodes")).count();
    // So the first has been answered.
    wait_until("it asks again", || questions() >= 2);
    instance.site.scontrol("hang", "");
    let ran = finished(child.wait_with_output().unwrap());
    let last = ran.stderr.split_once("no name found in").unwrap().1;
    assert!(ran.code == Some(75) && last.contains("coming up has NodeAddr of ("), "{:?} {}", ran.code, ran.stderr);
}

#[test]
fn a_configuration_with_mistakes_or_a_time_that_is_none_is_refused() {
    let instance = Instance::new();
    assert_eq!(instance.site.run("slurm-ec2", &["node-name", "--timeout", "soon"]).code, Some(2));
    instance.site.write("slurm-ec2.toml", "cluster = 3\n");
    let ran = instance.ask(&[]);
    assert!(ran.code == Some(78) && ran.stderr.contains("slurm-ec2.toml:1:"), "{}", ran.stderr);
}

/// On NFS it may only not be there yet: with 78 the unit would give up, and slurmd would never start.
#[test]
fn a_named_configuration_that_is_not_there_yet_is_for_another_time() {
    let instance = Instance::new();
    fs::remove_file(instance.site.path("slurm-ec2.toml")).unwrap();
    let ran = instance.ask(&[]);
    assert!(ran.code == Some(75) && ran.stderr.contains("cannot read the configuration"), "{:?} {}", ran.code, ran.stderr);
}

#[test]
fn a_compute_nodes_own_file_is_enough() {
    let instance = Instance::new();
    let config = fs::read_to_string(instance.site.path("slurm-ec2.toml")).unwrap();
    instance.site.write("slurm-ec2.toml", config.split("[[group]]").next().unwrap());
    instance.nodes(&[("c5-2", ADDRESS, UP)]);
    assert_is(&instance.ask(&[]), "c5-2");
    let ran = instance.site.run("slurm_resume", &["c5-2"]);
    assert!(ran.code == Some(78) && ran.stderr.contains("group is missing"), "{:?} {}", ran.code, ran.stderr);
}
