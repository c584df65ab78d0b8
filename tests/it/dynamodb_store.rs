//! The mapping in a DynamoDB table (moto's), shared by two head nodes: programs of both at the same time, and what one of them
//! leaves when it is killed.

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde_json::{Map, Value, json};
use slurm_ec2_testkit::ec2::{Behaviour, Rule};

use crate::moto::Moto;
use crate::site::{Ran, Site, finished};

const TABLE: &str = "slurm-ec2-hpc";
const PATIENCE: Duration = Duration::from_secs(120);

/// Two head nodes, each with a state folder and a log of its own, one EC2, one Slurm, one table.
struct Heads {
    site: Site,
    moto: Moto,
}

impl Heads {
    fn new(behaviour: Behaviour) -> Self {
        let heads = Self { site: Site::new(behaviour), moto: Moto::start() };
        heads.create_table(TABLE, "cluster", Some("item"));
        let url = one_at_a_time(heads.moto.port);
        for head in ["head1", "head2"] {
            heads.configure(head, TABLE, &url);
        }
        heads
    }

    fn create_table(&self, table: &str, hash: &str, range: Option<&str>) {
        let keys = [Some((hash, "HASH")), range.map(|range| (range, "RANGE"))];
        let schema: Vec<_> = keys.iter().flatten().map(|(name, kind)| json!({"AttributeName": name, "KeyType": kind})).collect();
        let kinds: Vec<_> = keys.iter().flatten().map(|(name, _)| json!({"AttributeName": name, "AttributeType": "S"})).collect();
        let input = json!({
            "TableName": table, "KeySchema": schema, "AttributeDefinitions": kinds, "BillingMode": "PAY_PER_REQUEST"
        });
        self.moto.dynamodb("CreateTable", &input.to_string());
    }

    fn configure(&self, head: &str, table: &str, url: &str) {
        let root = self.site.dir.path().display().to_string();
        let config = std::fs::read_to_string(self.site.path("slurm-ec2.toml")).unwrap();
        let config = config
            .replace(
                &format!("[state]\ndir = \"{root}/state\"\n"),
                &format!("[state]\ndir = \"{root}/{head}-state\"\nstore = \"dynamodb\"\ntable = \"{table}\"\n"),
            )
            .replace(&format!("dir = \"{root}/log\""), &format!("dir = \"{root}/{head}-log\""))
            .replace("[aws]\n", &format!("[aws]\ndynamodb_endpoint_url = \"{url}\"\n"));
        self.site.write(&format!("{head}.toml"), &config);
    }

    fn command(&self, head: &str, program: &str, args: &[&str]) -> Command {
        let mut command = self.site.command(program, args);
        command.env("SLURM_EC2_CONFIG", self.site.path(&format!("{head}.toml")));
        command
    }

    fn spawn(&self, head: &str, program: &str, nodes: &str) -> Child {
        self.command(head, program, &[nodes]).spawn().unwrap()
    }

    fn run(&self, head: &str, program: &str, nodes: &str) -> Ran {
        finished(self.command(head, program, &[nodes]).output().unwrap())
    }

    #[track_caller]
    fn succeed(&self, head: &str, program: &str, nodes: &str) {
        let ran = self.run(head, program, nodes);
        assert_eq!(ran.code, Some(0), "{program} {nodes} on {head}: {}\n{}", ran.stderr, self.logs());
    }

    #[track_caller]
    fn ends_well(&self, child: Child) {
        let ran = finished(child.wait_with_output().unwrap());
        assert_eq!(ran.code, Some(0), "{}\n{}", ran.stderr, self.logs());
    }

    fn logs(&self) -> String {
        let mut text = String::new();
        for head in ["head1", "head2"] {
            for program in ["slurm_resume", "slurm_suspend", "slurm_resume_fail"] {
                text += &std::fs::read_to_string(self.site.path(&format!("{head}-log/{program}.log"))).unwrap_or_default();
            }
        }
        text
    }

    /// All items: name and attributes.
    fn items(&self) -> Vec<(String, Map<String, Value>)> {
        let input = json!({
            "TableName": TABLE, "ConsistentRead": true, "KeyConditionExpression": "#c = :c",
            "ExpressionAttributeNames": {"#c": "cluster"}, "ExpressionAttributeValues": {":c": {"S": "hpc"}}
        });
        let answer = self.moto.dynamodb("Query", &input.to_string());
        let (_, body) = answer.split_once("\r\n\r\n").unwrap();
        let answer: Value = serde_json::from_str(body).unwrap();
        let items = answer["Items"].as_array().unwrap().iter();
        items.map(|item| (item["item"]["S"].as_str().unwrap().to_owned(), item.as_object().unwrap().clone())).collect()
    }

    fn of_kind(&self, prefix: &str) -> Vec<(String, Map<String, Value>)> {
        let items = self.items().into_iter();
        items.filter_map(|(name, item)| Some((name.strip_prefix(prefix)?.to_owned(), item))).collect()
    }

    /// Node → instance.
    fn running(&self) -> Vec<(String, String)> {
        let nodes = self.of_kind("node#").into_iter();
        nodes.filter_map(|(node, item)| Some((node, item.get("instance_id")?["S"].as_str()?.to_owned()))).collect()
    }

    /// Every live instance stands behind exactly one node, every mapped instance lives, and nothing else is left.
    #[track_caller]
    fn assert_settled(&self) {
        let running = self.running();
        let mapped: BTreeSet<String> = running.iter().map(|(_, id)| id.clone()).collect();
        assert_eq!(mapped.len(), running.len(), "two nodes share an instance: {running:?}\n{}", self.logs());
        assert_eq!(mapped, self.site.live(), "mapped and live: {:#?}\n{}", self.items(), self.logs());
        assert_eq!(running.len(), self.of_kind("node#").len(), "a claim stays: {:#?}\n{}", self.items(), self.logs());
        for kind in ["condemned#", "launch#"] {
            assert!(self.of_kind(kind).is_empty(), "{:#?}\n{}", self.of_kind(kind), self.logs());
        }
    }

    /// So much time passes for all that the table holds.
    fn age(&self, by: Duration) {
        for (_, mut item) in self.items() {
            for (_, value) in &mut item {
                if let Some(text) = value["S"].as_str() {
                    let aged = match serde_json::from_str::<Value>(text) {
                        Ok(mut json @ (Value::Object(_) | Value::Array(_))) => {
                            age_value(&mut json, by);
                            json.to_string()
                        }
                        _ => aged(text, by),
                    };
                    *value = json!({"S": aged});
                }
            }
            self.moto.dynamodb("PutItem", &json!({"TableName": TABLE, "Item": item}).to_string());
        }
    }
}

fn age_value(value: &mut Value, by: Duration) {
    match value {
        Value::String(text) => *text = aged(text, by),
        Value::Array(values) => values.iter_mut().for_each(|value| age_value(value, by)),
        Value::Object(fields) => fields.values_mut().for_each(|value| age_value(value, by)),
        _ => {}
    }
}

fn aged(text: &str, by: Duration) -> String {
    match humantime::parse_rfc3339(text) {
        Ok(time) => humantime::format_rfc3339_millis(time - by).to_string(),
        Err(_) => text.to_owned(),
    }
}

/// A way to moto that lets one request through at a time. DynamoDB carries transactions out as if they were alone; moto takes a
/// cancelled one back by putting the whole table back as it was, with what others wrote in the meantime. The address.
fn one_at_a_time(port: u16) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let gate = Arc::new(Mutex::new(()));
    std::thread::spawn(move || {
        for client in listener.incoming() {
            let (Ok(client), gate) = (client, Arc::clone(&gate)) else { return };
            std::thread::spawn(move || {
                // A client that was killed is no error here.
                let _ = pass(client, port, &gate);
            });
        }
    });
    url
}

fn pass(mut client: TcpStream, port: u16, gate: &Mutex<()>) -> std::io::Result<()> {
    let mut request = Vec::new();
    let mut buffer = [0; 65536];
    let (head, length) = loop {
        let read = client.read(&mut buffer)?;
        if read == 0 {
            return Ok(());
        }
        request.extend_from_slice(&buffer[..read]);
        if let Some(end) = request.windows(4).position(|window| window == b"\r\n\r\n") {
            let head = String::from_utf8_lossy(&request[..end]).to_lowercase();
            let length = head.lines().find_map(|line| line.strip_prefix("content-length:")?.trim().parse::<usize>().ok());
            break (end, length.unwrap_or(0));
        }
    };
    while request.len() < head + 4 + length {
        let read = client.read(&mut buffer)?;
        if read == 0 {
            return Ok(());
        }
        request.extend_from_slice(&buffer[..read]);
    }
    let mut answer = Vec::new();
    {
        let _alone = gate.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let mut moto = TcpStream::connect(("127.0.0.1", port))?;
        moto.write_all(&request[..head])?;
        moto.write_all(b"\r\nConnection: close")?;
        moto.write_all(&request[head..])?;
        moto.read_to_end(&mut answer)?;
    }
    client.write_all(&answer)
}

#[test]
fn b80_two_head_nodes_resume_the_same_nodes() {
    let heads = Heads::new(Behaviour::default());
    for round in 0..3 {
        let ours = heads.spawn("head1", "slurm_resume", "c5-[1-14]");
        let theirs = heads.spawn("head2", "slurm_resume", "c5-[7-20]");
        heads.ends_well(ours);
        heads.ends_well(theirs);
        // What lost a race is terminated by whoever runs next.
        heads.succeed("head1", "slurm_suspend", "c5-100");
        heads.assert_settled();
        assert_eq!(heads.running().len(), 20, "round {round}\n{}", heads.logs());
        let states: BTreeSet<_> =
            heads.site.ec2.live_instances().into_iter().map(|instance| instance.tags["slurm-ec2:state"].clone()).collect();
        assert_eq!(states.len(), 1, "one state id for both: {states:?}");
        let ours = heads.spawn("head1", "slurm_suspend", "c5-[1-14]");
        let theirs = heads.spawn("head2", "slurm_suspend", "c5-[7-20]");
        heads.ends_well(ours);
        heads.ends_well(theirs);
        heads.assert_settled();
        assert!(heads.site.live().is_empty(), "round {round}\n{}", heads.logs());
    }
}

#[test]
fn b80_resume_on_one_head_node_against_suspend_on_the_other() {
    let heads = Heads::new(Behaviour::default());
    for pause in [0, 30, 60, 100, 150, 250] {
        let resume = heads.spawn("head1", "slurm_resume", "c5-[1-10]");
        std::thread::sleep(Duration::from_millis(pause));
        let suspend = heads.spawn("head2", "slurm_suspend", "c5-[4-7]");
        heads.ends_well(resume);
        heads.ends_well(suspend);
        heads.succeed("head2", "slurm_suspend", "c5-100");
        heads.assert_settled();
        let running: BTreeSet<String> = heads.running().into_iter().map(|(node, _)| node).collect();
        for node in ["c5-1", "c5-2", "c5-3", "c5-8", "c5-9", "c5-10"] {
            assert!(running.contains(node), "{pause}: {running:?}\n{}", heads.logs());
        }
        heads.succeed("head1", "slurm_suspend", "c5-[1-10]");
        assert!(heads.site.live().is_empty());
    }
}

#[test]
fn b80_a_killed_resume_is_finished_by_the_other_head_node_once_its_time_is_over() {
    let heads = Heads::new(Behaviour::with_rules(vec![Rule::on("RunInstances").nth(1).hold("stop").after()]));
    let mut resume = heads.spawn("head1", "slurm_resume", "c5-[1-3]");
    let begun = Instant::now();
    while !heads.site.ec2.wait_held("stop", Duration::from_millis(20)) {
        assert!(begun.elapsed() < PATIENCE, "{}", heads.logs());
    }
    resume.kill().unwrap();
    resume.wait().unwrap();
    heads.site.ec2.release("stop");
    assert_eq!(heads.site.live().len(), 3);
    // It may still be alive for all that the other can see.
    heads.succeed("head2", "slurm_resume", "c5-[1-3]");
    assert!(heads.running().is_empty() && heads.site.live().len() == 3, "{}", heads.logs());
    assert!(heads.logs().contains("another run is launching it"), "{}", heads.logs());
    // Another call, after its time: Slurm still waits for the nodes.
    heads.age(Duration::from_secs(360));
    heads.succeed("head2", "slurm_resume", "c5-[11-12]");
    heads.age(Duration::from_secs(360));
    heads.succeed("head1", "slurm_suspend", "c5-100");
    heads.age(Duration::from_secs(360));
    heads.succeed("head1", "slurm_suspend", "c5-100");
    heads.assert_settled();
    assert_eq!(heads.running().len(), 5, "{}", heads.logs());
}

#[test]
fn a_table_that_cannot_be_used_is_named_and_nothing_is_launched() {
    let heads = Heads::new(Behaviour::default());
    heads.create_table("parallelcluster-slurm-orchard", "Id", None);
    for (table, part) in [("missing-table", "create-table"), ("parallelcluster-slurm-orchard", "keys: cluster, item")] {
        heads.configure("head1", table, &heads.moto.url());
        let ran = heads.run("head1", "slurm_resume", "c5-[1-3]");
        assert_eq!(ran.code, Some(78), "{}", heads.logs());
        let logs = heads.logs();
        assert!(logs.contains(table) && logs.contains("eu-west-1") && logs.contains(part), "{logs}");
        let told = heads.site.updates().pop().unwrap();
        assert!(told.contains("nodename=c5-1,c5-2,c5-3 ") && told.contains(table), "Slurm is told: {told}");
    }
    assert_eq!(heads.site.ec2.count("RunInstances"), 0);
    assert!(heads.items().is_empty());
}

#[test]
fn a_table_that_does_not_answer_is_a_temporary_failure() {
    let heads = Heads::new(Behaviour::default());
    // Nobody listens there, nor will another test.
    heads.configure("head1", TABLE, "http://127.0.0.1:1");
    let ran = heads.run("head1", "slurm_suspend", "c5-1");
    assert!(heads.logs().contains(TABLE), "{}", heads.logs());
    assert_eq!(ran.code, Some(75), "{}", heads.logs());
}

#[test]
fn a_dry_run_reads_the_table_and_changes_nothing() {
    let heads = Heads::new(Behaviour::default());
    let dry = |head: &str| finished(heads.command(head, "slurm_resume", &["--dry-run", "c5-[1-3]"]).output().unwrap());
    let ran = dry("head2");
    assert!(ran.stdout.contains("launch       3  c5-[1-3]"), "{}{}", ran.stdout, ran.stderr);
    assert!(heads.items().is_empty() && !heads.site.path("head2-state").exists());
    heads.succeed("head1", "slurm_resume", "c5-2");
    let before = heads.items();
    let ran = dry("head2");
    assert!(ran.stdout.contains("launch       2  c5-[1,3]") && ran.stdout.contains(&heads.running()[0].1), "{}", ran.stdout);
    assert_eq!(heads.items(), before);
}
