#![allow(clippy::unwrap_used)]

use slurm_ec2_testkit::ec2::{Behaviour, Endpoint, InstanceChange, Rule, Seed};

use super::*;
use crate::aws::responder;
use crate::config::file::parse;

/// B125. What EC2 does not show, or not tell, is asked for again: tags are seen some time after they were made.
#[tokio::test]
async fn ec2_is_asked_again_until_it_shows_the_tag() {
    let endpoint = Endpoint::start(Behaviour::default());
    let id = endpoint.seed(&Seed::default()).remove(0);
    let own = Identity { instance: Some(id.clone()), ..Identity::default() };
    let config =
        "cluster = \"hpc\"\nregion = \"eu-west-1\"\n[[group]]\nname = \"c5\"\nnodes = \"c5-1\"\nlaunch_template = \"abc\"\n";
    let mut settings = parse(Path::new("x.toml"), config).unwrap();
    settings.aws = responder::settings();
    settings.aws.endpoint_url = Some(endpoint.url());
    let until = Instant::now() + Duration::from_mins(5);
    let mut place = Place::all(&settings, until).pop().unwrap();
    assert_eq!(place.kind, Kind::Ec2);
    let mut asker = Asker::new(settings, None);

    let mut asks_in_vain = async |said: &str| {
        assert_eq!(place.ask(&mut asker, &own, until).await, None);
        assert!(place.said.contains(said), "{said}: {}", place.said);
        assert!(place.next().is_some_and(|next| next < until), "it is not asked again after: {}", place.said);
    };
    asks_in_vain("the instance has no such tag (yet)").await;
    endpoint.add_rules([
        Rule::on("DescribeTags").times(1).error("UnauthorizedOperation", 403),
        Rule::on("DescribeTags").times(1).error("RequestLimitExceeded", 503),
    ]);
    asks_in_vain("the permission ec2:DescribeTags is missing").await;
    asks_in_vain("RequestLimitExceeded").await;
    let tags = Some([(tag::NODE.to_owned(), "c5-1".to_owned())].into());
    endpoint.change(&id, InstanceChange { tags, ..InstanceChange::default() });
    assert_eq!(place.ask(&mut asker, &own, until).await.as_deref(), Some("c5-1"));
    assert_eq!((place.tries, endpoint.count("DescribeTags"), endpoint.requests().len()), (4, 4, 4));
}
