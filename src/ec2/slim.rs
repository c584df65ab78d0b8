//! Answers about instances without what nobody reads: EC2's XML in, the same XML with fewer elements out.
//!
//! An instance is 2.5 KB of XML and some 75 elements, of which `answer.rs` reads 15. The SDK compares each element's name with
//! up to 70 others and keeps all of them; for 1,000 instances that is most of what a run computes. So the elements not
//! in [`INSTANCE`], [`INTERFACE`] and [`ATTACHMENT`] are left out before the SDK sees the answer. Whoever reads another field of an instance
//! adds its element there.
//!
//! Never changes anything else, and leaves alone whatever it is not sure to understand: errors, other operations' answers,
//! text that is not the plain XML EC2 writes.

use aws_sdk_ec2::operation::describe_instances::DescribeInstances;
use aws_sdk_ec2::operation::run_instances::RunInstances;
use aws_smithy_runtime_api::box_error::BoxError;
use aws_smithy_runtime_api::client::interceptors::Intercept;
use aws_smithy_runtime_api::client::interceptors::context::{BeforeSerializationInterceptorContextMut, Error, Output};
use aws_smithy_runtime_api::client::orchestrator::{HttpResponse, Metadata, OrchestratorError};
use aws_smithy_runtime_api::client::runtime_components::RuntimeComponents;
use aws_smithy_runtime_api::client::runtime_plugin::RuntimePlugin;
use aws_smithy_runtime_api::client::ser_de::{DeserializeResponse, SharedResponseDeserializer};
use aws_smithy_types::body::SdkBody;
use aws_smithy_types::config_bag::{ConfigBag, FrozenLayer};

/// What `answer::instance` reads of an instance …
const INSTANCE: [&[u8]; 10] = [
    b"instanceId",
    b"instanceState",
    b"instanceType",
    b"launchTime",
    b"networkInterfaceSet",
    b"placement",
    b"privateDnsName",
    b"privateIpAddress",
    b"subnetId",
    b"tagSet",
];

/// … and of its network interfaces.
const INTERFACE: [&[u8]; 3] = [b"attachment", b"privateDnsName", b"privateIpAddress"];
const ATTACHMENT: [&[u8]; 2] = [b"deviceIndex", b"networkCardIndex"];

/// Puts the slimming in front of the SDK's own reading of an answer.
#[derive(Debug)]
pub(super) struct Slim;

impl Intercept for Slim {
    fn name(&self) -> &'static str {
        "slurm-ec2's shorter answers"
    }

    // Once per operation, before its first try. Only those whose answer is a list of whole instances.
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
            cfg.interceptor_state().store_put(SharedResponseDeserializer::new(Reader { own }));
        }
        Ok(())
    }
}

/// Reads an answer with the SDK's own reader of it, which is in the operation's own settings.
#[derive(Debug)]
struct Reader {
    own: FrozenLayer,
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
        let shorter = response.body().bytes().filter(|_| response.status().is_success()).and_then(slim);
        let Some(shorter) = shorter else { return reader.deserialize_nonstreaming_with_config(response, cfg) };
        let mut short = HttpResponse::new(response.status(), SdkBody::from(shorter));
        *short.headers_mut() = response.headers().clone();
        reader.deserialize_nonstreaming_with_config(&short, cfg)
    }
}

/// The document without the elements that are not read; `None` = take it as it is.
fn slim(document: &[u8]) -> Option<Vec<u8>> {
    let mut tags = Tags { document, at: 0 };
    let mut open: Vec<&[u8]> = Vec::new();
    let mut kept = Vec::with_capacity(document.len() / 2);
    let mut copied = 0;
    while let Some(tag) = tags.next()? {
        match tag.kind {
            Kind::Declaration => {}
            Kind::Close if open.pop() == Some(tag.name) => {}
            Kind::Close => return None,
            Kind::Open | Kind::Empty if !is_read(&open, tag.name) => {
                kept.extend_from_slice(&document[copied..tag.start]);
                if tag.kind == Kind::Open {
                    tags.skip()?;
                }
                copied = tags.at;
            }
            Kind::Open => open.push(tag.name),
            Kind::Empty => {}
        }
    }
    if !open.is_empty() {
        return None;
    }
    kept.extend_from_slice(&document[copied..]);
    Some(kept)
}

/// Is an element of this name, within these, kept?
fn is_read(open: &[&[u8]], name: &[u8]) -> bool {
    match open {
        [.., b"instancesSet", b"item"] => INSTANCE.contains(&name),
        [.., b"networkInterfaceSet", b"item"] => INTERFACE.contains(&name),
        [.., b"networkInterfaceSet", b"item", b"attachment"] => ATTACHMENT.contains(&name),
        [.., b"item", b"placement"] => name == b"availabilityZone",
        _ => true,
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Open,
    Close,
    Empty,
    /// `<?xml … ?>`
    Declaration,
}

struct Tag<'d> {
    kind: Kind,
    name: &'d [u8],
    /// Of its `<`.
    start: usize,
}

/// The tags of a document, one after the other.
struct Tags<'d> {
    document: &'d [u8],
    /// Behind the last tag.
    at: usize,
}

impl<'d> Tags<'d> {
    /// `Some(None)` at the end of the document; `None` for what EC2 does not write: comments, CDATA, prefixes, tags cut short.
    #[expect(clippy::option_option, reason = "the outer one is `?` of everything here")]
    fn next(&mut self) -> Option<Option<Tag<'d>>> {
        let Some((start, inner)) = self.advance()? else { return Some(None) };
        let (kind, inner) = sort(inner)?;
        let length = inner.iter().position(u8::is_ascii_whitespace).unwrap_or(inner.len());
        let (name, attributes) = inner.split_at(length);
        // A ">" within a value would have ended the tag too early: then there is a quote that is not closed.
        let quotes = |quote| attributes.iter().filter(|&&byte| byte == quote).count() % 2;
        if kind != Kind::Declaration && (name.is_empty() || name.contains(&b':') || quotes(b'"') + quotes(b'\'') > 0) {
            return None;
        }
        Some(Some(Tag { kind, name, start }))
    }

    /// To behind the end of the element whose start was the last tag. What is in it is not looked at more closely than that;
    /// attributes, which EC2's elements do not have, end it.
    fn skip(&mut self) -> Option<()> {
        let mut depth = 1_usize;
        while depth > 0 {
            let (_, inner) = self.advance()??;
            match sort(inner)?.0 {
                Kind::Open if inner.contains(&b'=') => return None,
                Kind::Open => depth += 1,
                Kind::Close => depth -= 1,
                Kind::Empty => {}
                Kind::Declaration => return None,
            }
        }
        Some(())
    }

    /// The next tag: where its `<` is, and what stands between that and its `>`.
    #[expect(clippy::option_option, reason = "the outer one is `?` of everything here")]
    fn advance(&mut self) -> Option<Option<(usize, &'d [u8])>> {
        let Some(start) = find(b'<', self.document, self.at) else { return Some(None) };
        let end = find(b'>', self.document, start + 1)?;
        self.at = end + 1;
        Some(Some((start, &self.document[start + 1..end])))
    }
}

/// The kind of a tag, and its inside without the slash.
fn sort(inner: &[u8]) -> Option<(Kind, &[u8])> {
    match inner {
        [b'!', ..] => None,
        [b'?', ..] => Some((Kind::Declaration, inner)),
        [b'/', name @ ..] => Some((Kind::Close, name)),
        [name @ .., b'/'] => Some((Kind::Empty, name)),
        name => Some((Kind::Open, name)),
    }
}

fn find(byte: u8, document: &[u8], from: usize) -> Option<usize> {
    document.get(from..)?.iter().position(|&found| found == byte).map(|gap| from + gap)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use aws_sdk_ec2::types::{LaunchTemplateSpecification, ResourceType, TagSpecification};
    use slurm_ec2_testkit::ec2::{Behaviour, Endpoint};

    use super::super::sdk::Ec2;
    use super::super::{answer, request};
    use super::*;
    use crate::aws::responder::settings;
    use crate::model::instance::InstanceState;
    use crate::model::time::Timestamp;

    fn slimmed(text: &str) -> Option<String> {
        slim(text.as_bytes()).map(|bytes| String::from_utf8(bytes).unwrap())
    }

    #[test]
    fn what_is_not_read_goes_with_all_that_is_in_it() {
        let text = "<?xml version=\"1.0\"?>\n<R xmlns=\"http://x/\"><requestId>r</requestId><instancesSet><item>\
             <imageId>ami</imageId><instanceId>i-1</instanceId><dnsName/><groupSet><item><instanceId>no</instanceId></item></groupSet>\
             <tagSet><item><key>a &lt; b</key><value/></item></tagSet><networkInterfaceSet><item><macAddress>m</macAddress>\
             <privateIpAddress>10.0.0.5</privateIpAddress><groupSet/><attachment><attachTime>t</attachTime><deviceIndex>0</deviceIndex></attachment>\
             </item></networkInterfaceSet></item><item/></instancesSet><nextToken>t</nextToken></R>\n";
        let expected = "<?xml version=\"1.0\"?>\n<R xmlns=\"http://x/\"><requestId>r</requestId><instancesSet><item>\
             <instanceId>i-1</instanceId>\
             <tagSet><item><key>a &lt; b</key><value/></item></tagSet><networkInterfaceSet><item>\
             <privateIpAddress>10.0.0.5</privateIpAddress><attachment><deviceIndex>0</deviceIndex></attachment>\
             </item></networkInterfaceSet></item><item/></instancesSet><nextToken>t</nextToken></R>\n";
        assert_eq!(slimmed(text).unwrap(), expected);
        assert_eq!(slimmed(expected).unwrap(), expected);
        // The elements of a subnet's or anything else's own item stay.
        let other = "<R><reservationSet><item><ownerId>1</ownerId><other><item><imageId>x</imageId></item></other></item></reservationSet></R>";
        assert_eq!(slimmed(other).unwrap(), other);
    }

    #[tokio::test]
    async fn the_sdk_gets_the_shorter_answer_and_nothing_is_lost() {
        let behaviour = Behaviour { network_cards: 3, shuffle_cards: true, ..Behaviour::default() };
        let endpoint = Endpoint::start(behaviour);
        let mut aws = settings();
        aws.endpoint_url = Some(endpoint.url());
        let ec2 = Ec2::connect(&aws, "eu-west-1").await.unwrap();
        let name = LaunchTemplateSpecification::builder().launch_template_name("hpc").build();
        let tags = request::tags(&[("a & <b>".to_owned(), "\"c\"".to_owned())]);
        let tags = TagSpecification::builder().resource_type(ResourceType::Instance).set_tags(Some(tags)).build();
        let call = ec2.client().run_instances().launch_template(name).tag_specifications(tags).min_count(2).max_count(2);
        let launched = call.send().await.unwrap();
        assert!(launched.reservation_id.is_some());
        let described = ec2.client().describe_instances().send().await.unwrap();
        let described = described.reservations().iter().flat_map(|reservation| reservation.instances());
        for told in [launched.instances().iter().collect::<Vec<_>>(), described.collect()] {
            assert_eq!(told.len(), 2);
            for (told, real) in told.into_iter().zip(endpoint.instances()) {
                assert!(told.image_id.is_none() && told.block_device_mappings().is_empty(), "sent, and left out");
                let cards = told.network_interfaces();
                assert!(cards.len() == 3 && cards.iter().all(|card| card.mac_address.is_none()));
                let seen = answer::instance(told.clone()).unwrap();
                assert_eq!(seen.id, real.id);
                assert_eq!(seen.private_ip, Some(real.private_ip.to_string()));
                assert_eq!(seen.hostname.as_deref(), real.hostname.split('.').next());
                assert_eq!(
                    (seen.instance_type, seen.zone, seen.subnet),
                    (Some(real.instance_type), Some(real.zone), Some(real.subnet))
                );
                assert_eq!(seen.launch_time, Some(Timestamp::from_secs(real.launch_time_ms / 1000)));
                assert_ne!(seen.state, InstanceState::Unknown);
                assert_eq!(seen.tags, real.tags);
            }
        }
    }

    #[test]
    fn what_is_not_understood_is_left_alone() {
        for text in [
            "<R><instancesSet><item><imageId>a</imageId></item></instancesSet>",
            "<R><instancesSet><item><imageId>a</item></instancesSet></R>",
            "<R><a></b></R>",
            "<R><!-- <imageId> --></R>",
            "<R><![CDATA[<]]></R>",
            "<x:R></x:R>",
            "<R a=\">\"></R>",
            "<R",
            "<></>",
            "<R><instancesSet><item><imageId a=\">\"/></item></instancesSet></R>",
            "<R><instancesSet><item><a><b c=\">\"></b></a></item></instancesSet></R>",
        ] {
            assert_eq!(slimmed(text), None, "{text}");
        }
        assert_eq!(slimmed("not XML at all").unwrap(), "not XML at all");
        assert_eq!(slimmed("").unwrap(), "");
    }
}
