//! In the place of the Python package's clustermgtd on a ParallelCluster head node: its configuration file, its tables, its heartbeat, its
//! log and events.

use std::collections::BTreeMap;
use std::fs;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::thread;

use serde_json::{Value, json};
use slurm_ec2_testkit::dynamodb::{self, Table};
use slurm_ec2_testkit::ec2::{Behaviour, Seed, Template};

use super::world::{Daemon, node};
use crate::site::Site;

const NODES: &str = "parallelcluster-slurm-orchard";
const STATUS: &str = "parallelcluster-orchard";
const STATIC: &str = "apple-st-core-1";
const DYNAMIC: &str = "apple-dy-core-1";

/// One address for all services, as the configuration has it: a connection goes where its first request says.
fn one_endpoint(ec2: SocketAddr, dynamodb: SocketAddr) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    thread::spawn(move || {
        for client in listener.incoming().flatten() {
            thread::spawn(move || drop(route(client, ec2, dynamodb)));
        }
    });
    url
}

fn route(mut client: TcpStream, ec2: SocketAddr, dynamodb: SocketAddr) -> std::io::Result<()> {
    let mut head = Vec::new();
    let mut bytes = [0; 4096];
    while !head.windows(4).any(|end| end == b"\r\n\r\n") {
        match client.read(&mut bytes)? {
            0 => return Ok(()),
            length => head.extend_from_slice(&bytes[..length]),
        }
    }
    let is_dynamodb = String::from_utf8_lossy(&head).to_lowercase().contains("x-amz-target: dynamodb");
    let mut server = TcpStream::connect(if is_dynamodb { dynamodb } else { ec2 })?;
    server.write_all(&head)?;
    let (mut from, mut to) = (client.try_clone()?, server.try_clone()?);
    thread::spawn(move || {
        let _ = std::io::copy(&mut from, &mut to);
        let _ = to.shutdown(Shutdown::Both);
    });
    std::io::copy(&mut server, &mut client)?;
    client.shutdown(Shutdown::Both)
}

fn address(url: &str) -> SocketAddr {
    url.trim_start_matches("http://").parse().unwrap()
}

fn packages_tags() -> BTreeMap<String, String> {
    [("parallelcluster:cluster-name", "orchard"), ("parallelcluster:node-type", "Compute"), ("Name", "Compute")]
        .map(|(key, value)| (key.to_owned(), value.to_owned()))
        .into()
}

/// A head node with a static and a dynamic node, both off.
fn head() -> (Site, dynamodb::Endpoint) {
    let template = Template { name: "orchard-apple-core".to_owned(), tags: packages_tags(), ..Template::default() };
    let site = Site::new(Behaviour { templates: vec![template], ..Behaviour::default() });
    fs::remove_file(site.path("slurm-ec2.toml")).unwrap();
    let tables = dynamodb::Endpoint::start(dynamodb::Behaviour {
        tables: vec![
            Table::new(NODES, "Id").only(&["PutItem", "BatchWriteItem", "GetItem", "BatchGetItem"]),
            Table::new(STATUS, "Id").only(&["UpdateItem", "PutItem", "GetItem", "BatchGetItem"]),
        ],
        ..dynamodb::Behaviour::default()
    });
    set_fleet(&tables, "RUNNING");
    let root = site.dir.path().display();
    let url = one_endpoint(site.ec2.address(), address(&tables.url()));
    site.write(
        "parallelcluster_clustermgtd.conf",
        &format!(
            "[clustermgtd]\ncluster_name = orchard\nregion = eu-west-1\nproxy = NONE\nloop_time = 1\n\
             heartbeat_file_path = {root}/clustermgtd_heartbeat\ndynamodb_table = {NODES}\nhosted_zone =\ndns_domain =\n\
             head_node_private_ip = 10.40.0.17\nhead_node_hostname = ip-10-40-0-17\ninstance_id = i-0a11e57000c0ffee1\n\
             fleet_config_file = {root}/fleet-config.json\nrun_instances_overrides = {root}/run_instances_overrides.json\n\
             create_fleet_overrides = {root}/create_fleet_overrides.json\n\
             [slurm_ec2]\nstate_dir = {root}/state\nlog_dir = {root}/log\nendpoint_url = {url}\nrequest_bucket = false\n"
        ),
    );
    fleet_config(&site, &["core"]);
    site.scontrol("version", "25.11.6\n");
    site.scontrol("live", "");
    site.scontrol("partitions", "PartitionName=apple\n   AllowGroups=ALL\n   State=UP TotalCPUs=1\n\n");
    site.scontrol("nodes", &[STATIC, DYNAMIC].map(|name| node(name, "IDLE+CLOUD+POWERED_DOWN", None)).concat());
    (site, tables)
}

fn fleet_config(site: &Site, resources: &[&str]) {
    let resource = json!({"Api": "run-instances", "CapacityType": "on-demand", "Instances": [{"InstanceType": "c5.large"}]});
    let resources: BTreeMap<&str, Value> = resources.iter().map(|name| (*name, resource.clone())).collect();
    site.write("fleet-config.json", &json!({"apple": resources}).to_string());
}

fn set_fleet(tables: &dynamodb::Endpoint, word: &str) {
    let data = json!({"M": {"status": {"S": word}, "lastStatusUpdatedTime": {"S": "2026-11-29 12:00:00 UTC"}}});
    let item = json!({"Id": {"S": "COMPUTE_FLEET"}, "Data": data});
    tables.put(STATUS, item.as_object().unwrap().clone());
}

/// As supervisord starts it.
fn start(site: &Site) -> Daemon<'_> {
    let mut command = site.command("clustermgtd", &[]);
    command
        .env_remove("SLURM_EC2_CONFIG")
        .env("CONFIG_FILE", site.path("parallelcluster_clustermgtd.conf"))
        .env("SLURM_BINARIES_DIR", site.path("bin"))
        .env("AWS_ACCESS_KEY_ID", "AKIDEXAMPLE")
        .env("AWS_SECRET_ACCESS_KEY", "secret");
    Daemon::with(site, command)
}

fn log(site: &Site) -> String {
    fs::read_to_string(site.path("log/clustermgtd")).unwrap_or_default()
}

#[test]
fn a_static_node_is_launched_and_tied_as_the_package_does() {
    let (site, tables) = head();
    let mut daemon = start(&site);
    daemon.wait(|daemon| daemon.node(STATIC).1 != STATIC);
    let reason = "state=down reason=Static node maintenance: unhealthy node is being replaced";
    assert!(site.updates().iter().any(|line| line.contains(STATIC) && line.contains(reason)), "{:?}", site.updates());
    let live = site.ec2.live_instances();
    assert_eq!((live.len(), daemon.node(STATIC).1), (1, live[0].private_ip.to_string()), "{}", log(&site));
    let items = tables.items(NODES);
    assert_eq!((items.len(), items[0]["InstanceId"]["S"].as_str()), (1, Some(live[0].id.as_str())), "{items:?}");
    assert!(site.updates().iter().any(|line| line.contains(&format!("instanceid={}", live[0].id))), "{:?}", site.updates());
    // It resumes itself when it is up (aws-facts B.13).
    let shown = fs::read_to_string(site.path("bin/scontrol.nodes")).unwrap();
    site.scontrol("nodes", &shown.replacen("State=DOWN+CLOUD", "State=IDLE+CLOUD", 1));
    let before = site.updates().len();
    daemon.passes(3);
    assert_eq!((site.updates().len(), site.live().len()), (before, 1), "{}", log(&site));
    assert!(daemon.status()["replacing"].as_object().unwrap().is_empty(), "{:#}", daemon.status());

    daemon.wait(|_| site.path("clustermgtd_heartbeat").exists());
    let beat = fs::read_to_string(site.path("clustermgtd_heartbeat")).unwrap();
    assert!(beat.len() == 31 && beat.ends_with("000+0000") && beat.as_bytes()[10] == b' ', "{beat:?}");
    assert!(log(&site).lines().any(|line| line.contains(" - [clustermgtd:")), "{}", log(&site));
    let events = fs::read_to_string(site.path("log/clustermgtd.events")).unwrap();
    assert!(events.lines().any(|line| line.contains("\"clustermgtd-heartbeat\"")), "{events}");
    let said = daemon.end();
    assert_eq!((said.code, said.stdout.as_str(), said.stderr.as_str()), (Some(0), "", ""), "supervisord writes it into the log");
}

/// Instances of the package's own launches are the cluster's, too.
#[test]
fn the_packages_instances_are_looked_after() {
    let (site, tables) = head();
    site.scontrol("nodes", &node(DYNAMIC, "IDLE+CLOUD+POWERED_DOWN", None));
    let old = site.ec2.seed(&Seed { tags: packages_tags(), age_ms: 400_000, ..Seed::default() });
    let young = site.ec2.seed(&Seed { tags: packages_tags(), age_ms: 60_000, ..Seed::default() });
    let mut daemon = start(&site);
    daemon.wait(|_| !site.live().contains(&old[0]));
    assert!(site.live().contains(&young[0]), "{}", log(&site));
    // A stopped fleet has no instance at all.
    set_fleet(&tables, "STOPPED");
    daemon.wait(|_| site.live().is_empty());
    assert!(site.updates().iter().any(|line| line.contains("partitionname=apple state=inactive")), "{:?}", site.updates());
}

/// A changed fleet-config.json is a changed configuration.
#[test]
fn json_files_are_read_again() {
    let (site, _tables) = head();
    let more = "apple-st-more-1";
    site.scontrol("nodes", &(node(DYNAMIC, "IDLE+CLOUD+POWERED_DOWN", None) + &node(more, "IDLE+CLOUD+POWERED_DOWN", None)));
    let mut daemon = start(&site);
    daemon.passes(2);
    assert!(site.live().is_empty() && site.updates().is_empty(), "{}", log(&site));
    site.write("fleet-config.json", "{\"apple\": ");
    daemon.wait(|_| log(&site).contains("the old configuration stays in force"));
    fleet_config(&site, &["core", "more"]);
    daemon.wait(|_| site.live().len() == 1);
    assert_eq!(log(&site).matches("stays in force").count(), 1, "{}", log(&site));
}
