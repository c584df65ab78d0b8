//! Templates, tags, fallbacks, API parameters: text to recipes or mistakes.
#![allow(clippy::unwrap_used)]

use serde_json::json;

use super::tests::{LEAST, good, in_group, mistakes};
use crate::model::recipe::{Api, Capacity, Recipe};

/// The group's recipe and its fallbacks.
fn recipes(lines: &str) -> (Recipe, Vec<Recipe>) {
    let mut settings = good(&format!("{LEAST}{lines}"));
    let group = settings.groups.remove(0);
    (group.recipe, group.fallbacks)
}

#[test]
fn a_fallback_takes_what_it_does_not_set_from_the_group() {
    let (first, fallbacks) = recipes(
        "api = \"create-fleet\"\ncapacity = \"spot\"\ninstance_types = [\"c5.large\"]\nsubnets = [\"subnet-1\"]\nmax_price = 0.5\n\
         allocation_strategy = \"diversified\"\ntags = { a = \"b\" }\noverrides = { Context = \"x\" }\n\
         [[group.fallback]]\ninstance_types = [\"c6i.large\", \"c6a.large\"]\n\
         [[group.fallback]]\ncapacity = \"on-demand\"\n\
         [[group.fallback]]\napi = \"run-instances\"\nsubnets = []\nlaunch_template = { id = \"lt-0123456789abcdef0\" }\n\
         [[group.fallback]]\nmax_price = 0.9\noverrides = {}\n",
    );
    let [types, demand, other, price] = fallbacks.as_slice() else { panic!("{fallbacks:?}") };
    assert_eq!(types, &Recipe { instance_types: vec!["c6i.large".into(), "c6a.large".into()], ..first.clone() });
    assert_eq!(
        demand,
        &Recipe { capacity: Capacity::OnDemand, max_price: None, allocation_strategy: None, ..first.clone() },
        "a price and a strategy belong to a way of buying"
    );
    assert_eq!((other.api, other.subnets.len(), other.max_price, other.overrides.len()), (Api::RunInstances, 0, None, 0));
    assert_eq!(other.instance_types, ["c5.large"], "from the group, not from the fallback before");
    assert_eq!(other.launch_template.id.as_deref(), Some("lt-0123456789abcdef0"));
    assert_eq!(price, &Recipe { max_price: Some(0.9), overrides: serde_json::Map::new(), ..first });
}

#[test]
fn a_fallback_that_changes_nothing_is_a_mistake() {
    assert!(in_group("[[group.fallback]]")[0].starts_with("7:1: this fallback changes nothing"));
    assert!(in_group("[[group.fallback]]\ncapacity = \"on-demand\"")[0].contains("asks for the same as the group itself"));
    let second = in_group("[[group.fallback]]\ncapacity = \"spot\"\n[[group.fallback]]\ncapacity = \"spot\"");
    assert!(
        second.len() == 1 && second[0].starts_with("9:1: this fallback asks for the same as the fallback before it"),
        "{second:?}"
    );
    // On demand, spot, and on demand again later: it may have come back.
    assert_eq!(recipes("[[group.fallback]]\ncapacity = \"spot\"\n[[group.fallback]]\ncapacity = \"on-demand\"").1.len(), 2);
}

#[test]
fn fallbacks_are_held_to_the_same_rules() {
    for (lines, place, part) in [
        ("[[group.fallback]]\ninstance_types = [\"c5.large\", \"c6i.large\"]", "8:18", "RunInstances takes one instance type"),
        ("[[group.fallback]]\nmax_price = 0.5", "8:13", "for spot instances only"),
        ("[[group.fallback]]\ncapcity = \"spot\"", "8:1", "write capacity"),
        ("[[group.fallback]]\ncapacity = \"sopt\"", "8:12", "write \"spot\""),
        ("[[group.fallback]]\nlaunch_template = { version = 3 }", "8:19", "neither name nor id"),
        ("[[group.fallback]]\nname = \"x\"", "8:1", "unknown key \"name\" in [[group.fallback]]"),
        ("[group.fallback]\ncapacity = \"spot\"", "7:1", "with two brackets"),
        ("fallback = [1]", "7:12", "write a [[group.fallback]] section for each fallback"),
    ] {
        let found = in_group(lines);
        assert!(found.len() == 1 && found[0].starts_with(place) && found[0].contains(part), "{lines}: {found:?}");
    }
}

#[test]
fn the_template_decides_for_run_instances_only() {
    assert_eq!(recipes("capacity = \"template\"").0.capacity, Capacity::Template);
    let found = in_group("api = \"create-fleet\"\ncapacity = \"template\"\nallocation_strategy = \"lowest-price\"");
    assert!(found.len() == 1 && found[0].starts_with("8:12: CreateFleet does not take"), "{found:?}");
    assert!(in_group("capacity = \"template\"\nmax_price = 0.5")[0].contains("spot instances only"));
}

#[test]
fn api_parameters_are_kept_as_they_are() {
    let (recipe, _) = recipes(
        "[group.overrides]\nEbsOptimized = true\nNetworkInterfaces = [{ DeviceIndex = 0, Groups = [\"sg-1\"] }]\n\
         [group.overrides.MetadataOptions]\nHttpTokens = \"required\"\nHttpPutResponseHopLimit = 0x2\n",
    );
    assert_eq!(
        serde_json::Value::Object(recipe.overrides),
        json!({
            "EbsOptimized": true,
            "NetworkInterfaces": [{ "DeviceIndex": 0, "Groups": ["sg-1"] }],
            "MetadataOptions": { "HttpTokens": "required", "HttpPutResponseHopLimit": 2 },
        })
    );
    let (fleet, _) = recipes("api = \"create-fleet\"\noverrides = { ValidUntil = 2030-01-01T00:00:00Z }");
    assert_eq!(serde_json::Value::Object(fleet.overrides), json!({ "ValidUntil": "2030-01-01T00:00:00Z" }));
    let unknown = in_group("[group.overrides]\nebsOptimized = true\nEbsOptimized = \"yes\"\nClientToken = \"a\"");
    assert_eq!(unknown.len(), 3, "{unknown:?}");
    for (mistake, place, word) in
        [(&unknown[0], "8:1", "EbsOptimized"), (&unknown[1], "9:1", "EbsOptimized"), (&unknown[2], "10:1", "ClientToken")]
    {
        assert!(mistake.starts_with(place) && mistake.contains(word) && mistake.contains("RunInstances"), "{mistake}");
    }
    assert!(in_group("api = \"create-fleet\"\noverrides = { EbsOptimized = true }")[0].starts_with("8:15: EbsOptimized"));
    assert!(in_group("overrides = 3")[0].contains("overrides must be a table"));
    assert!(in_group("overrides = { EbsOptimized = nan }")[0].contains("the API takes no number nan"));
    assert!(in_group("overrides = { MaxCount = 99999999999999999999 }")[0].starts_with("7:26: the number is too large"));
}

#[test]
fn launch_templates() {
    let with = |template: &str| LEAST.replace("\"hpc-c5\"", template);
    let version = |template: &str| good(&with(template)).groups[0].recipe.launch_template.version.clone();
    assert_eq!(version("{ name = \"abc\", version = 3 }"), "3");
    assert_eq!(version("{ name = \"abc\", version = \"3\" }"), "3");
    assert_eq!(version("{ id = \"lt-0123456789abcdef0\", version = \"$Latest\" }"), "$Latest");
    for (template, part) in [
        ("{ version = 3 }", "neither name nor id"),
        ("{ name = \"abc\", id = \"lt-0123456789abcdef0\" }", "both name and id"),
        ("{ name = \"abc\", version = 0 }", "version \"0\" does not exist"),
        ("{ name = \"abc\", version = -1 }", "version \"-1\" does not exist"),
        ("{ name = \"abc\", version = \"latest\" }", "write \"$Latest\""),
        ("{ name = \"abc\", version = true }", "version must be a number or a string"),
        ("{ name = \"abc\", verson = 1 }", "write version"),
        ("{ id = \"hpc\" }", "is no launch template id"),
        ("\"lt-0123456789abcdef0\"", "write { id = \"lt-0123456789abcdef0\" }"),
        ("\"a b\"", "cannot be a launch template's name"),
        ("\"\"", "launch_template is empty"),
        ("7", "a name or a table"),
    ] {
        let found = mistakes(&with(template));
        assert!(found.len() == 1 && found[0].contains(part), "{template}: {found:?}");
    }
}

#[test]
fn r34_reserved_tags_are_named() {
    let found = in_group("tags = { \"aws:x\" = \"1\", \"AWS:y\" = \"1\", \"slurm-ec2:node\" = \"n\", fine = \"1\" }");
    assert_eq!(found.len(), 3, "{found:?}");
    for key in ["aws:x", "AWS:y", "slurm-ec2:node"] {
        assert!(found.iter().any(|mistake| mistake.contains(&format!("{key:?} is reserved"))), "{key}: {found:?}");
    }
    let tags = |count: usize| (0..count).map(|n| format!("k{n} = \"v\"")).collect::<Vec<_>>().join(", ");
    good(&format!("{LEAST}tags = {{ {} }}", tags(42)));
    assert!(in_group(&format!("tags = {{ {} }}", tags(43)))[0].contains("43 tags are too many"));
    assert_eq!(in_group(&format!("tags = {{ {} = \"v\" }}", "k".repeat(129))).len(), 1);
    assert_eq!(in_group(&format!("tags = {{ k = \"{}\" }}", "v".repeat(257))).len(), 1);
    assert!(in_group("tags = { cost = 4711 }")[0].contains("put it in quotes: \"4711\""));
    good(&format!("{LEAST}tags = {{ {} = \"{}\", empty = \"\" }}", "k".repeat(128), "é".repeat(256)));
}

#[test]
fn impossible_combinations_are_pointed_at() {
    for (lines, place, part) in [
        ("instance_types = [\"c5.large\", \"c6i.large\"]", "7:18", "RunInstances takes one instance type"),
        ("subnets = [\"subnet-1\", \"subnet-2\"]", "7:11", "RunInstances takes one subnet"),
        ("allocation_strategy = \"lowest-price\"", "7:23", "RunInstances has no allocation strategy"),
        (
            "api = \"create-fleet\"\nstrategy = \"all-or-nothing\"\ninstance_types = [\"c5.large\", \"c6i.large\"]\nsubnets = [\"subnet-1\", \"subnet-2\"]",
            "8:12",
            "MinTargetCapacity needs a single type or a single zone",
        ),
        ("api = \"create-fleet\"\nstrategy = \"all-or-nothing\"\nbatch_size = 1001", "9:14", "at most 1000 instances"),
        ("api = \"create-fleet\"\nallocation_strategy = \"diversified\"", "8:23", "does not exist for on-demand"),
        ("capacity = \"spot\"\nmax_price = 0.001", "8:13", "must be above 0.001"),
        (
            "api = \"create-fleet\"\ncapacity = \"capacity-block\"\nsubnets = [\"subnet-1\", \"subnet-2\"]",
            "9:11",
            "lies in one zone",
        ),
    ] {
        let found = in_group(lines);
        assert!(found.len() == 1 && found[0].starts_with(place) && found[0].contains(part), "{lines}: {found:?}");
    }
    // The strategy of [launch] counts for a group that has none.
    let text = format!(
        "{}api = \"create-fleet\"\n",
        LEAST.replace("[[group]]", "[launch]\nstrategy = \"all-or-nothing\"\nbatch_size = 2000\n[[group]]")
    );
    assert!(mistakes(&text)[0].starts_with("10:7: CreateFleet guarantees at most 1000"), "{:?}", mistakes(&text));
}
