//! DescribeTags as a client on the wire sees it.

use super::tests::{call, ids};
use super::*;

fn asked(filters: &[(&str, &str)], more: &str) -> String {
    let mut form = "Action=DescribeTags".to_owned();
    for (at, (name, value)) in filters.iter().enumerate() {
        let at = at + 1;
        form.push_str(&format!("&Filter.{at}.Name={name}&Filter.{at}.Value.1={value}"));
    }
    form + more
}

fn seeded(tags: &[(&str, &str)]) -> Seed {
    Seed { tags: tags.iter().map(|&(key, value)| (key.to_owned(), value.to_owned())).collect(), ..Seed::default() }
}

#[test]
fn tags_by_instance_and_key() {
    let ec2 = Endpoint::start(Behaviour::default());
    ec2.seed(&seeded(&[("node", "c5-1"), ("Name", "a & b")]));
    ec2.seed(&seeded(&[("node", "c5-2")]));
    let all = ids(&ec2.instances());
    let one = call(&ec2, &asked(&[("resource-id", &all[0]), ("key", "node")], ""));
    assert_eq!(
        (one.all("resourceId"), one.all("key"), one.all("value")),
        (all[..1].to_vec(), vec!["node".into()], vec!["c5-1".into()])
    );
    assert_eq!(one.all("resourceType"), ["instance"]);
    assert_eq!(call(&ec2, &asked(&[("key", "node")], "")).all("value"), ["c5-1", "c5-2"]);
    assert_eq!(call(&ec2, &asked(&[("key", "N*")], "")).all("value"), ["a &amp; b"], "wildcards");
    assert_eq!(call(&ec2, &asked(&[], "")).all("key").len(), 3);
    for (id, key) in [("i-0ec2000000000ffff", "node"), (all[1].as_str(), "Name"), ("x", "node")] {
        let none = call(&ec2, &asked(&[("resource-id", id), ("key", key)], ""));
        assert_eq!((none.status, none.all("item").len()), (200, 0), "{id} {key}");
    }
}

#[test]
fn tags_come_late_and_in_pages_and_other_filters_are_refused() {
    let ec2 = Endpoint::start(Behaviour { page_size: Some(1), ..Behaviour::default() });
    ec2.seed(&seeded(&[("a", "1"), ("b", "2")]));
    let first = call(&ec2, &asked(&[], ""));
    let next = first.all("nextToken");
    assert_eq!((first.all("value"), next.len()), (vec!["1".to_owned()], 1));
    let last = call(&ec2, &asked(&[], &format!("&NextToken={}", next[0])));
    assert_eq!((last.all("value"), last.all("nextToken").len()), (vec!["2".to_owned()], 0));
    let id = ids(&ec2.instances()).remove(0);
    ec2.change(&id, InstanceChange { hidden: Some(true), ..InstanceChange::default() });
    assert!(call(&ec2, &asked(&[("resource-id", &id)], "")).all("value").is_empty());
    for bad in [asked(&[("resource-type", "instance")], ""), asked(&[("tag:a", "1")], ""), asked(&[], "&MaxResults=1001")] {
        assert_eq!(call(&ec2, &bad).code(), "InvalidParameterValue", "{bad}");
    }
    assert_eq!(call(&ec2, &asked(&[], "&NextToken=x")).code(), "InvalidNextToken");
}
