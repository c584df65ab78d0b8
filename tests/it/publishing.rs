//! Who hears of a node's instance: the node table, DNS, Slurm, in this order; and what becomes of a node that one of them refuses.

use std::fs;
use std::time::{Duration, Instant};

use serde_json::json;
use slurm_ec2_testkit::dynamodb::{self, Table};
use slurm_ec2_testkit::ec2::{Behaviour, Rule};
use slurm_ec2_testkit::route53::{self, Zone};

use crate::moto::Moto;
use crate::site::{GROUP, Site, finished};

const OFF: &str = "request_bucket = \"off\"\n";
const TABLE: &str = "parallelcluster-slurm-orchard";
const ZONE: &str = "Z0123456789";

/// What a test waits for must come; this is only the end of a test that fails.
const PATIENCE: Duration = Duration::from_secs(120);

/// A site whose nodes are told to both services as well.
struct Told {
    site: Site,
    dynamodb: dynamodb::Endpoint,
    route53: route53::Endpoint,
}

impl Told {
    fn new(publish: &str, change: impl FnOnce(&mut dynamodb::Behaviour, &mut route53::Behaviour)) -> Self {
        let role = ["PutItem", "BatchWriteItem", "GetItem", "BatchGetItem"];
        let mut tables =
            dynamodb::Behaviour { tables: vec![Table::new(TABLE, "Id").only(&role)], ..dynamodb::Behaviour::default() };
        let mut zones = route53::Behaviour { zones: vec![Zone::new(ZONE, "orchard.pcluster.")], ..route53::Behaviour::default() };
        change(&mut tables, &mut zones);
        let (dynamodb, route53) = (dynamodb::Endpoint::start(tables), route53::Endpoint::start(zones));
        let site = Site::with(Behaviour::default(), OFF, GROUP);
        let config = fs::read_to_string(site.path("slurm-ec2.toml")).unwrap();
        let urls =
            format!("[aws]\ndynamodb_endpoint_url = \"{}\"\nroute53_endpoint_url = \"{}\"\n", dynamodb.url(), route53.url());
        site.write("slurm-ec2.toml", &format!("{}{publish}", config.replace("[aws]\n", &urls)));
        site.scontrol("applied", "");
        Self { site, dynamodb, route53 }
    }

    fn everywhere(more: &str, change: impl FnOnce(&mut dynamodb::Behaviour, &mut route53::Behaviour)) -> Self {
        Self::new(
            &format!(
                "{more}[node_table]\ntable = \"{TABLE}\"\nhead_node_private_ip = \"10.40.0.17\"\nhead_node_hostname = \"head\"\n\
                 [dns]\nhosted_zone = \"{ZONE}\"\ndomain = \"orchard.pcluster.\"\n"
            ),
            change,
        )
    }

    /// `NODE FIELD=VALUE …` of each node that slurmctld was told an address of.
    fn addresses(&self) -> Vec<String> {
        let applied = fs::read_to_string(self.site.path("bin/scontrol.applied")).unwrap_or_default();
        applied.lines().filter(|line| line.contains("nodeaddr=127.")).map(str::to_owned).collect()
    }

    /// Every running node is told everywhere with its own instance and address, and nobody else to Slurm.
    #[track_caller]
    fn assert_told(&self) {
        let running = self.site.running();
        let mapping = self.site.mapping();
        let (items, records, addresses) = (self.dynamodb.items(TABLE), self.route53.records(ZONE), self.addresses());
        assert_eq!(addresses.len(), running.len(), "{addresses:?}");
        for (node, instance) in running {
            let ip = mapping["nodes"][&node]["private_ip"].as_str().unwrap();
            let item = items.iter().find(|item| item["Id"]["S"] == node.as_str());
            assert_eq!(item.map(|item| &item["InstanceId"]["S"]), Some(&json!(instance)), "{node}");
            assert_eq!(records[&format!("{node}.orchard.pcluster.")].values, [ip]);
            assert!(addresses.iter().any(|line| line.starts_with(&format!("{node} nodeaddr={ip}"))), "{node}: {addresses:?}");
        }
    }

    #[track_caller]
    fn wait(&self, what: &str, is_so: impl Fn(&Self) -> bool) {
        let end = Instant::now() + PATIENCE;
        while !is_so(self) {
            assert!(Instant::now() < end, "{what} did not come\n{}", self.site.log("slurm_resume"));
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// The update with this failure's code.
    #[track_caller]
    fn failure(&self, code: &str) -> String {
        let updates = self.site.updates();
        let found = updates.iter().find(|line| line.contains("reason=") && line.contains(&format!("(Code:{code})")));
        found.unwrap_or_else(|| panic!("no {code} in {updates:?}")).clone()
    }
}

#[test]
fn b60_all_are_told() {
    let told = Told::everywhere("[publish]\nbatch_size = 30\n", |tables, zones| {
        tables.unprocessed_percent = 20;
        tables.rules = vec![Rule::on("BatchWriteItem").times(2).error("ThrottlingException", 400)];
        zones.rules = vec![Rule::on("*").times(2).error("Throttling", 400)];
    });
    let ran = told.site.run("slurm_resume", &["c5-[1-70]"]);
    assert_eq!(ran.code, Some(0), "{}", told.site.log("slurm_resume"));
    assert_eq!(told.site.running().len(), 70);
    told.assert_told();
    assert_eq!(told.dynamodb.items(TABLE)[0]["HeadNodePrivateIp"], json!({"S": "10.40.0.17"}));
    assert_eq!(told.route53.sizes(), [30, 30, 30, 30, 10], "the first step twice more");
    told.site.assert_settled();
    // Slurm asks again: new instances, and item and record of each node are replaced.
    assert_eq!(told.site.run("slurm_resume", &["c5-[1-70]"]).code, Some(0));
    let items = told.dynamodb.items(TABLE);
    let by_item = |node: &str| items.iter().find(|item| item["Id"]["S"] == node).map(|item| item["InstanceId"]["S"].clone());
    assert!(told.site.running().iter().all(|(node, instance)| by_item(node) == Some(json!(instance))));
    assert_eq!((items.len(), told.route53.records(ZONE).len(), told.site.live().len()), (70, 70, 70));
}

#[test]
fn r31_without_table_and_zone_nobody_is_asked() {
    let told = Told::new("", |_, _| {});
    assert_eq!(told.site.run("slurm_resume", &["c5-[1-3]"]).code, Some(0), "{}", told.site.log("slurm_resume"));
    assert_eq!(told.addresses().len(), 3);
    assert_eq!(told.site.run("slurm_suspend", &["c5-[1-3]"]).code, Some(0));
    assert!(told.dynamodb.requests().is_empty() && told.route53.requests().is_empty());
    assert!(!told.site.path("state/route53-bucket.json").exists());
    // An endpoint that cannot work is no matter either.
    let config = fs::read_to_string(told.site.path("slurm-ec2.toml")).unwrap();
    told.site.write("slurm-ec2.toml", &config.replace(&told.route53.url(), "http://127.0.0.1:1"));
    assert_eq!(told.site.run("slurm_resume", &["c5-4"]).code, Some(0));
}

#[test]
fn b61_r30_what_the_table_refuses_is_failed_and_terminated_in_the_same_run() {
    let told = Told::everywhere("", |tables, _| {
        tables.rules = vec![Rule::on("BatchWriteItem").nth(1).error("ResourceNotFoundException", 400)];
    });
    let ran = told.site.run("slurm_resume", &["c5-[1-40]"]);
    assert_eq!(ran.code, Some(1), "{}", told.site.log("slurm_resume"));
    // One of the two writes: 25 nodes or 15.
    let left = told.dynamodb.items(TABLE).len();
    assert!(left == 15 || left == 25, "{left}");
    assert_eq!((told.site.running().len(), told.site.live().len(), told.route53.records(ZONE).len()), (left, left, left));
    told.assert_told();
    let failure = told.failure("ResourceNotFoundException");
    assert!(failure.contains(TABLE) && failure.contains("state=power_down_force"), "{failure}");
    told.site.assert_settled();
}

#[test]
fn b62_r30_a_bad_record_fails_its_node_and_no_other() {
    let told = Told::everywhere("", |_, zones| zones.refused = vec!["c5-2.orchard.pcluster.".into()]);
    let ran = told.site.run("slurm_resume", &["c5-[1-4]"]);
    assert_eq!(ran.code, Some(1), "{}", told.site.log("slurm_resume"));
    assert_eq!(told.site.running().into_iter().map(|(node, _)| node).collect::<Vec<_>>(), ["c5-1", "c5-3", "c5-4"]);
    assert_eq!(told.site.live().len(), 3);
    told.assert_told();
    let failure = told.failure("InvalidChangeBatch");
    assert!(failure.contains("nodename=c5-2 ") && failure.contains("c5-2.orchard.pcluster."), "{failure}");
    told.site.assert_settled();
}

#[test]
fn the_table_comes_before_dns_and_slurm() {
    let told = Told::everywhere("", |tables, zones| {
        tables.rules = vec![Rule::on("BatchWriteItem").nth(1).hold("table")];
        zones.rules = vec![Rule::on("*").nth(1).delay_ms(1)];
    });
    let child = told.site.spawn("slurm_resume", &["c5-[1-2]"]);
    assert!(told.dynamodb.wait_held("table", PATIENCE), "{}", told.site.log("slurm_resume"));
    assert!(told.route53.requests().is_empty() && told.addresses().is_empty());
    told.dynamodb.release("table");
    assert_eq!(finished(child.wait_with_output().unwrap()).code, Some(0));
    told.assert_told();
}

#[test]
fn a_later_step_is_written_while_an_earlier_one_is_at_slurm() {
    let told = Told::everywhere("[publish]\nbatch_size = 1\n", |_, _| {});
    told.site.scontrol("hold.1", "");
    let child = told.site.spawn("slurm_resume", &["c5-[1-2]"]);
    told.wait("the first update", |told| told.site.path("bin/scontrol.held.1").exists());
    told.wait("the second item and record", |told| {
        told.dynamodb.items(TABLE).len() == 2 && told.route53.records(ZONE).len() == 2
    });
    assert!(told.addresses().is_empty());
    fs::remove_file(told.site.path("bin/scontrol.hold.1")).unwrap();
    assert_eq!(finished(child.wait_with_output().unwrap()).code, Some(0), "{}", told.site.log("slurm_resume"));
    told.assert_told();
}

#[test]
fn b63_what_is_not_written_in_time_is_told_by_the_next_program() {
    let told = Told::everywhere("", |tables, _| tables.rules = vec![Rule::on("BatchWriteItem").times(1).hang()]);
    told.site.hurry();
    let ran = told.site.run("slurm_resume", &["c5-1"]);
    assert_eq!(ran.code, Some(75), "{}", told.site.log("slurm_resume"));
    assert_eq!((told.site.live().len(), told.site.mapping()["nodes"]["c5-1"]["unpublished"].as_bool()), (1, Some(true)));
    assert!(told.addresses().is_empty() && told.route53.requests().is_empty());
    told.site.write("slurm.conf", "ResumeTimeout=600\n");
    assert_eq!(told.site.run("slurm_resume", &["c5-2"]).code, Some(0), "{}", told.site.log("slurm_resume"));
    assert_eq!(told.site.running().len(), 2);
    told.assert_told();
}

#[test]
fn c06_the_host_name_is_the_private_dns_name_only_where_asked_for() {
    for (publish, expected) in [("", false), ("[publish]\nhostname = true\n", true)] {
        let told = Told::new(publish, |_, _| {});
        assert_eq!(told.site.run("slurm_resume", &["c5-[1-2]"]).code, Some(0), "{}", told.site.log("slurm_resume"));
        let mapping = told.site.mapping();
        let addresses = told.addresses();
        assert_eq!(addresses.len(), 2);
        for (node, line) in ["c5-1", "c5-2"].into_iter().zip(addresses) {
            let entry = &mapping["nodes"][node];
            let hostname = entry["hostname"].as_str().unwrap();
            let ip = entry["private_ip"].as_str().unwrap();
            assert_eq!(hostname, format!("ip-{}", ip.replace('.', "-")));
            // What is not told stays the node's own name.
            assert_eq!(line.contains(&format!("nodehostname={hostname}")), expected, "{line}");
            assert_eq!(line.contains("nodehostname="), expected, "{line}");
        }
    }
}

#[test]
fn moto_takes_items_and_records() {
    let moto = Moto::start();
    moto.dynamodb(
        "CreateTable",
        &json!({
            "TableName": TABLE, "BillingMode": "PAY_PER_REQUEST",
            "AttributeDefinitions": [{"AttributeName": "Id", "AttributeType": "S"}],
            "KeySchema": [{"AttributeName": "Id", "KeyType": "HASH"}]
        })
        .to_string(),
    );
    let made = moto.route53(
        "POST",
        "/2013-04-01/hostedzone",
        "<CreateHostedZoneRequest xmlns=\"https://route53.amazonaws.com/doc/2013-04-01/\"><Name>orchard.pcluster.</Name>\
         <CallerReference>one</CallerReference></CreateHostedZoneRequest>",
    );
    let zone = made.split_once("<Id>/hostedzone/").unwrap().1.split_once("</Id>").unwrap().0;
    let told = Told::everywhere("", |_, _| {});
    let config = fs::read_to_string(told.site.path("slurm-ec2.toml")).unwrap();
    let config = config.replace(&told.dynamodb.url(), &moto.url()).replace(&told.route53.url(), &moto.url());
    told.site.write("slurm-ec2.toml", &config.replace(ZONE, zone));
    let ran = told.site.run("slurm_resume", &["c5-[1-60]"]);
    assert_eq!(ran.code, Some(0), "{}", told.site.log("slurm_resume"));
    let (node, instance) = told.site.running().remove(0);
    let item = moto.dynamodb("GetItem", &json!({"TableName": TABLE, "Key": {"Id": {"S": node}}}).to_string());
    assert!(item.contains(&instance) && item.contains("HeadNodePrivateIp"), "{item}");
    let all = moto.dynamodb("Scan", &json!({"TableName": TABLE, "Select": "COUNT"}).to_string());
    assert!(all.contains("\"Count\": 60") || all.contains("\"Count\":60"), "{all}");
    let records = moto.route53("GET", &format!("/2013-04-01/hostedzone/{zone}/rrset?maxitems=300"), "");
    assert_eq!(records.matches("<Type>A</Type>").count(), 60, "{records}");
    let ip = told.site.mapping()["nodes"][&node]["private_ip"].as_str().unwrap().to_owned();
    assert!(records.contains(&format!("<Value>{ip}</Value>")) && records.contains("<TTL>120</TTL>"), "{records}");
}
