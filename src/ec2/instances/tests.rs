//! Both readings of the same answers: ours and the SDK's.

#![allow(clippy::unwrap_used)]
use aws_sdk_ec2::operation::describe_instances::DescribeInstancesOutput;
use aws_sdk_ec2::types::{LaunchTemplateSpecification, ResourceType, TagSpecification};
use proptest::prelude::*;
use slurm_ec2_testkit::ec2::{Behaviour, Endpoint};

use super::super::sdk::Ec2;
use super::super::{answer, request};
use super::*;
use crate::aws::responder::settings;

const ITEM: &str = "<item><imageId>ami</imageId><instanceId>i-1</instanceId><dnsName/>\
    <instanceState><code>16</code><name>running</name></instanceState>\
    <groupSet><item><instanceId>no</instanceId></item></groupSet><launchTime>2026-11-29T12:00:00.000Z</launchTime>\
    <tagSet><item><key>a &lt; b</key><value/></item><item><value>no key</value></item></tagSet>\
    <placement><availabilityZone>eu-west-1a</availabilityZone><tenancy>default</tenancy></placement>\
    <networkInterfaceSet><item><macAddress>m</macAddress><privateIpAddress>10.0.0.5</privateIpAddress>\
    <attachment><attachTime>2026-11-29T12:00:00.000Z</attachTime><deviceIndex>0</deviceIndex></attachment></item></networkInterfaceSet></item>";

fn described(items: &str) -> String {
    format!(
        "<?xml version=\"1.0\"?>\n<DescribeInstancesResponse xmlns=\"http://x/\"><requestId>r</requestId><reservationSet><item>\
         <reservationId>r-1</reservationId><instancesSet>{items}</instancesSet></item></reservationSet>\
         <nextToken>t</nextToken></DescribeInstancesResponse>\n"
    )
}

fn split(document: &str) -> Option<(Vec<Instance>, String)> {
    super::split(document.as_bytes()).map(|(found, rest)| (found, String::from_utf8(rest).unwrap()))
}

#[test]
fn the_instances_are_read_and_the_rest_stays() {
    let (found, rest) = split(&described(&format!("{ITEM}\n  <item/>"))).unwrap();
    assert_eq!(rest, described(""));
    let [one] = &found[..] else { panic!("{found:?}") };
    assert_eq!((one.id.as_str(), one.private_ip.as_deref(), one.zone.as_deref()), ("i-1", Some("10.0.0.5"), Some("eu-west-1a")));
    assert_eq!(one.tags, [("a < b".to_owned(), String::new())].into());
    let run =
        format!("<RunInstancesResponse><instancesSet>{ITEM}{ITEM}</instancesSet><ownerId>1</ownerId></RunInstancesResponse>");
    let (found, rest) = split(&run).unwrap();
    assert_eq!(rest, "<RunInstancesResponse><instancesSet></instancesSet><ownerId>1</ownerId></RunInstancesResponse>");
    assert_eq!(found.len(), 2);
    let none = "<DescribeInstancesResponse><reservationSet/></DescribeInstancesResponse>";
    assert_eq!(split(none).unwrap(), (Vec::new(), none.to_owned()));
    let two = described(ITEM).replace("</reservationSet>", "<item><instancesSet/></item><item><instancesSet><item><instanceId>i-2</instanceId></item></instancesSet></item></reservationSet>");
    let (found, rest) = split(&two).unwrap();
    assert_eq!(found.iter().map(|one| one.id.as_str()).collect::<Vec<_>>(), ["i-1", "i-2"]);
    assert!(rest.contains("r-1") && rest.ends_with("<item><instancesSet/></item><item><instancesSet></instancesSet></item></reservationSet><nextToken>t</nextToken></DescribeInstancesResponse>\n"), "{rest}");
}

#[test]
fn what_is_not_understood_is_the_sdks() {
    assert!(split(&described(ITEM)).is_some());
    for (from, to) in [
        ("<instanceId>i-1", "<instanceId a=\"1\">i-1"),
        ("i-1", "<!-- -->i-1"),
        ("i-1", "&#105;-1"),
        ("<imageId>ami</imageId>", "<imageId a=\">\"/>"),
        ("<imageId>ami</imageId>", "<image:Id>ami</image:Id>"),
        ("2026-11-29T12", "yesterday T12"),
        ("<deviceIndex>0", "<deviceIndex>first"),
        ("</tagSet>", ""),
        ("</DescribeInstancesResponse>", ""),
        ("DescribeInstancesResponse", "DescribeTagsResponse"),
    ] {
        let document = described(ITEM);
        assert!(document.contains(from));
        assert_eq!(split(&document.replace(from, to)), None, "{from} -> {to}");
    }
    assert_eq!(split("not XML at all"), None);
    assert_eq!(split(""), None);
}

/// Both ways to read an answer give the same instances, whatever is in it.
#[tokio::test]
async fn the_sdk_would_read_the_same() {
    // Each stays pending, so that all answers are the same.
    let behaviour = Behaviour { network_cards: 3, shuffle_cards: true, boot_ms: 3_600_000, ..Behaviour::default() };
    let endpoint = Endpoint::start(behaviour);
    let mut aws = settings();
    aws.endpoint_url = Some(endpoint.url());
    let ec2 = Ec2::connect(&aws, "eu-west-1").await.unwrap();
    let name = LaunchTemplateSpecification::builder().launch_template_name("hpc").build();
    let tags = request::tags(&[("a & <b>".to_owned(), "\"c\"".to_owned())]);
    let tags = TagSpecification::builder().resource_type(ResourceType::Instance).set_tags(Some(tags)).build();
    let call = ec2.client().run_instances().launch_template(name).tag_specifications(tags).min_count(2).max_count(2);
    let reading = Reading::default();
    let launched = call.clone().client_token("one").customize().interceptor(reading.clone()).send().await.unwrap();
    let read = reading.taken();
    assert!(launched.reservation_id.is_some() && launched.instances().is_empty() && read.len() == 2);
    let again = call.client_token("one").send().await.unwrap();
    let by_sdk: Vec<Instance> = again.instances.unwrap().into_iter().filter_map(answer::instance).collect();
    assert_eq!(read, by_sdk);

    let described = ec2.client().describe_instances().customize().interceptor(reading.clone()).send().await.unwrap();
    let read = reading.taken();
    assert!(described.reservations().iter().all(|reservation| reservation.instances().is_empty()) && read.len() == 2);
    assert!(reading.taken().is_empty(), "each is given once");
    let by_sdk = ec2.client().describe_instances().send().await.unwrap();
    let by_sdk = by_sdk.reservations.unwrap().into_iter().flat_map(|reservation| reservation.instances.unwrap());
    assert_eq!(read, by_sdk.filter_map(answer::instance).collect::<Vec<_>>());
    for (seen, real) in read.iter().zip(endpoint.instances()) {
        assert_eq!((&seen.id, seen.private_ip.clone()), (&real.id, Some(real.private_ip.to_string())));
        assert_eq!(seen.tags, real.tags);
    }
}

/// The SDK's reading of a document: its instances and the page token. `None`: it refuses the document.
fn by_sdk(document: &str) -> Option<(Vec<Instance>, Option<String>)> {
    let own = DescribeInstances::new().config().unwrap();
    let reader = own.load::<SharedResponseDeserializer>().unwrap();
    let response = HttpResponse::new(200.try_into().unwrap(), SdkBody::from(document));
    let output = reader.deserialize_nonstreaming_with_config(&response, &ConfigBag::base()).ok()?;
    let output = output.downcast::<DescribeInstancesOutput>().unwrap();
    let told = output.reservations.unwrap_or_default().into_iter().flat_map(|found| found.instances.unwrap_or_default());
    Some((told.filter_map(answer::instance).collect(), output.next_token))
}

/// Elements within an item: of names that mean something and of others, at their places and at wrong ones, in any order and number.
fn element() -> impl Strategy<Value = String> {
    let name = prop_oneof![
        4 => prop::sample::select(vec![
            "instanceId", "instanceState", "name", "code", "instanceType", "launchTime", "networkInterfaceSet", "item",
            "attachment", "deviceIndex", "networkCardIndex", "placement", "availabilityZone", "privateDnsName",
            "privateIpAddress", "subnetId", "tagSet", "key", "value", "groupSet", "ipv6AddressesSet", "instancesSet",
        ]),
        1 => prop::sample::select(vec!["a", "dnsName", "iamInstanceProfile", "platformDetails"]),
    ];
    let text = prop_oneof![
        Just(String::new()),
        Just("running".to_owned()),
        Just("2026-11-29T12:00:00.000Z".to_owned()),
        Just("0".to_owned()),
        Just("1".to_owned()),
        Just("  10.0.0.5\n".to_owned()),
        "[a-z&;<> ]{0,6}".prop_map(|text| text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")),
    ];
    let leaf = (name.clone(), text)
        .prop_map(|(name, text)| if text.is_empty() { format!("<{name}/>") } else { format!("<{name}>{text}</{name}>") });
    leaf.prop_recursive(4, 24, 6, move |inner| {
        let gap = prop::sample::select(vec!["", "\n  "]);
        (name.clone(), prop::collection::vec(inner, 0..6), gap)
            .prop_map(|(name, parts, gap)| format!("<{name}>{gap}{}{gap}</{name}>", parts.join(gap)))
    })
}

proptest! {
    /// Whatever is read here, the SDK would have read the same.
    #[test]
    fn nothing_is_read_differently(parts in prop::collection::vec(element(), 0..10), whole in any::<bool>()) {
        let more = parts.concat();
        let document = described(&if whole { ITEM.replace("<dnsName/>", &more) } else { format!("<item>{more}</item>{ITEM}") });
        if let (Some((found, rest)), Some((sdks, token))) = (split(&document), by_sdk(&document)) {
            prop_assert_eq!(&found, &sdks);
            prop_assert_eq!(by_sdk(&rest), Some((Vec::new(), token)));
        }
    }
}

#[test]
fn both_read_what_ec2_writes() {
    let document = described(ITEM);
    let (found, rest) = split(&document).unwrap();
    assert_eq!(by_sdk(&document), Some((found, Some("t".to_owned()))));
    assert_eq!(by_sdk(&rest), Some((Vec::new(), Some("t".to_owned()))));
}
