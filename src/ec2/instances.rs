//! Answers about instances, read without the SDK: EC2's XML in, [`Instance`]s out, and the rest of the document for the SDK.
//!
//! An instance is 2.5 KB of XML and some 75 elements, of which 15 are of use here. The SDK compares each element's name with up to 70
//! others, and its `Instance` takes room for all of them; for the 10,000 of a large cluster that was more than half of what clustermgtd's
//! pass computed. So what stands in `<instancesSet>` is read here, and the SDK gets the document without it: status, error, request id and
//! page token are its to read.
//!
//! Whatever is not plain enough to be sure of (see `xml.rs`) is left in the document, and the caller finds the instances in the SDK's
//! answer: [`Reading::taken`] and the answer's own list together are always all of them. Whoever wants another field of an instance
//! adds its element here and in [`Told`].

use std::sync::{Arc, Mutex, PoisonError};

use aws_sdk_ec2::operation::describe_instances::DescribeInstances;
use aws_sdk_ec2::operation::run_instances::RunInstances;
use aws_sdk_ec2::types::InstanceStateName;
use aws_smithy_runtime_api::box_error::BoxError;
use aws_smithy_runtime_api::client::interceptors::Intercept;
use aws_smithy_runtime_api::client::interceptors::context::{BeforeSerializationInterceptorContextMut, Error, Output};
use aws_smithy_runtime_api::client::orchestrator::{HttpResponse, Metadata, OrchestratorError};
use aws_smithy_runtime_api::client::runtime_components::RuntimeComponents;
use aws_smithy_runtime_api::client::runtime_plugin::RuntimePlugin;
use aws_smithy_runtime_api::client::ser_de::{DeserializeResponse, SharedResponseDeserializer};
use aws_smithy_types::DateTime;
use aws_smithy_types::body::SdkBody;
use aws_smithy_types::config_bag::{ConfigBag, FrozenLayer};
use aws_smithy_types::date_time::Format;

use super::answer::{Card, Told};
use super::xml::{Cursor, Tag};
use crate::model::instance::Instance;

type Shelf = Arc<Mutex<Vec<Instance>>>;

/// Reads the instances of one call's answer, for RunInstances and DescribeInstances. To be made for each call, and given to it.
#[derive(Debug, Clone, Default)]
pub(super) struct Reading {
    found: Shelf,
}

impl Reading {
    /// What the last answer held, as far as it was read here.
    pub(super) fn taken(&self) -> Vec<Instance> {
        std::mem::take(&mut *self.found.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Intercept for Reading {
    fn name(&self) -> &'static str {
        "slurm-ec2's reading of instances"
    }

    // Once per call, before its first try.
    fn modify_before_serialization(
        &self,
        _: &mut BeforeSerializationInterceptorContextMut<'_>,
        _: &RuntimeComponents,
        cfg: &mut ConfigBag,
    ) -> Result<(), BoxError> {
        let own = match cfg.load::<Metadata>().map(Metadata::name) {
            Some("RunInstances") => RunInstances::new().config(),
            Some("DescribeInstances") => DescribeInstances::new().config(),
            _ => None,
        };
        if let Some(own) = own.filter(|own| own.load::<SharedResponseDeserializer>().is_some()) {
            let reader = Reader { own, found: Arc::clone(&self.found) };
            cfg.interceptor_state().store_put(SharedResponseDeserializer::new(reader));
        }
        Ok(())
    }
}

/// Takes the instances out of an answer and has the rest read by the SDK's own reader, which is in the operation's own settings.
#[derive(Debug)]
struct Reader {
    own: FrozenLayer,
    found: Shelf,
}

impl DeserializeResponse for Reader {
    fn deserialize_nonstreaming_with_config(
        &self,
        response: &HttpResponse,
        cfg: &ConfigBag,
    ) -> Result<Output, OrchestratorError<Error>> {
        let Some(reader) = self.own.load::<SharedResponseDeserializer>() else {
            return Err(OrchestratorError::other("the SDK has no reader for this answer"));
        };
        let read = response.body().bytes().filter(|_| response.status().is_success()).and_then(split);
        let (found, rest) = read.map_or((Vec::new(), None), |(found, rest)| (found, Some(rest)));
        *self.found.lock().unwrap_or_else(PoisonError::into_inner) = found;
        let Some(rest) = rest else { return reader.deserialize_nonstreaming_with_config(response, cfg) };
        let mut short = HttpResponse::new(response.status(), SdkBody::from(rest));
        *short.headers_mut() = response.headers().clone();
        reader.deserialize_nonstreaming_with_config(&short, cfg)
    }
}

/// The instances of a document, and the document without them; `None` = take it as it is.
fn split(document: &[u8]) -> Option<(Vec<Instance>, Vec<u8>)> {
    let mut split = Split { document, found: Vec::new(), rest: Vec::new(), copied: 0 };
    let mut cursor = Cursor::new(document);
    let root = cursor.root()?;
    if !matches!(root.name, b"DescribeInstancesResponse" | b"RunInstancesResponse") {
        return None;
    }
    cursor.children(root, |cursor, tag| match tag.name {
        b"reservationSet" => cursor.children(tag, |cursor, item| {
            cursor.children(item, |cursor, tag| match tag.name {
                b"instancesSet" => split.instances(cursor, tag),
                _ => cursor.skip(tag),
            })
        }),
        b"instancesSet" => split.instances(cursor, tag),
        _ => cursor.skip(tag),
    })?;
    split.rest.extend_from_slice(&document[split.copied..]);
    Some((split.found, split.rest))
}

struct Split<'d> {
    document: &'d [u8],
    found: Vec<Instance>,
    rest: Vec<u8>,
    /// So far the document is in `rest`, or left out of it.
    copied: usize,
}

impl<'d> Split<'d> {
    fn instances(&mut self, cursor: &mut Cursor<'d>, set: Tag<'d>) -> Option<()> {
        let start = cursor.at();
        cursor.children(set, |cursor, item| {
            self.found.extend(told(cursor, item)?.instance());
            Some(())
        })?;
        let end_tag = set.name.len() + "</>".len();
        if cursor.at() > start {
            self.rest.extend_from_slice(&self.document[self.copied..start]);
            self.copied = cursor.at() - end_tag;
        }
        Some(())
    }
}

fn told<'d>(cursor: &mut Cursor<'d>, item: Tag<'d>) -> Option<Told> {
    let mut told = Told::default();
    cursor.children(item, |cursor, tag| {
        match tag.name {
            b"instanceId" => told.id = Some(owned(cursor, tag)?),
            b"instanceState" => told.state = state(cursor, tag)?,
            b"instanceType" => told.instance_type = Some(owned(cursor, tag)?),
            b"launchTime" => told.launch_time = Some(time(&cursor.text(tag)?)?),
            b"networkInterfaceSet" => told.cards = list(cursor, tag, card)?,
            b"placement" => cursor.children(tag, |cursor, tag| {
                match tag.name {
                    b"availabilityZone" => told.zone = Some(owned(cursor, tag)?),
                    _ => cursor.skip(tag)?,
                }
                Some(())
            })?,
            b"privateDnsName" => told.private_dns = Some(owned(cursor, tag)?),
            b"privateIpAddress" => told.private_ip = Some(owned(cursor, tag)?),
            b"subnetId" => told.subnet = Some(owned(cursor, tag)?),
            b"tagSet" => told.tags = list(cursor, tag, pair)?.into_iter().flatten().collect(),
            _ => cursor.skip(tag)?,
        }
        Some(())
    })?;
    Some(told)
}

fn card<'d>(cursor: &mut Cursor<'d>, item: Tag<'d>) -> Option<Card> {
    let mut card = Card::default();
    cursor.children(item, |cursor, tag| {
        match tag.name {
            b"attachment" => cursor.children(tag, |cursor, tag| {
                match tag.name {
                    b"deviceIndex" => card.device = Some(cursor.text(tag)?.parse().ok()?),
                    b"networkCardIndex" => card.card = Some(cursor.text(tag)?.parse().ok()?),
                    _ => cursor.skip(tag)?,
                }
                Some(())
            })?,
            b"privateDnsName" => card.private_dns = Some(owned(cursor, tag)?),
            b"privateIpAddress" => card.private_ip = Some(owned(cursor, tag)?),
            _ => cursor.skip(tag)?,
        }
        Some(())
    })?;
    Some(card)
}

/// A tag; `None` within for one without a key.
#[expect(clippy::option_option, reason = "the outer one is `?` of everything here")]
fn pair<'d>(cursor: &mut Cursor<'d>, item: Tag<'d>) -> Option<Option<(String, String)>> {
    let (mut key, mut value) = (None, None);
    cursor.children(item, |cursor, tag| {
        match tag.name {
            b"key" => key = Some(owned(cursor, tag)?),
            b"value" => value = Some(owned(cursor, tag)?),
            _ => cursor.skip(tag)?,
        }
        Some(())
    })?;
    Some(key.map(|key| (key, value.unwrap_or_default())))
}

#[expect(clippy::option_option, reason = "the outer one is `?` of everything here")]
fn state<'d>(cursor: &mut Cursor<'d>, element: Tag<'d>) -> Option<Option<InstanceStateName>> {
    let mut state = None;
    cursor.children(element, |cursor, tag| {
        match tag.name {
            b"name" => state = Some(InstanceStateName::from(&*cursor.text(tag)?)),
            _ => cursor.skip(tag)?,
        }
        Some(())
    })?;
    Some(state)
}

/// The `item`s of a set.
fn list<'d, T>(cursor: &mut Cursor<'d>, set: Tag<'d>, item: fn(&mut Cursor<'d>, Tag<'d>) -> Option<T>) -> Option<Vec<T>> {
    let mut found = Vec::new();
    cursor.children(set, |cursor, tag| {
        found.push(item(cursor, tag)?);
        Some(())
    })?;
    Some(found)
}

fn owned<'d>(cursor: &mut Cursor<'d>, element: Tag<'d>) -> Option<String> {
    cursor.text(element).map(std::borrow::Cow::into_owned)
}

fn time(text: &str) -> Option<DateTime> {
    DateTime::from_str(text, Format::DateTimeWithOffset).ok()
}

#[cfg(test)]
mod tests {
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
        assert_eq!(
            (one.id.as_str(), one.private_ip.as_deref(), one.zone.as_deref()),
            ("i-1", Some("10.0.0.5"), Some("eu-west-1a"))
        );
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
}
