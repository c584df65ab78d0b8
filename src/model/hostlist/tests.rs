//! Against what real Slurm printed (`tests/data/hostlist/conformance.json`), and properties that hold for any text.

use std::collections::{BTreeSet, HashSet};
use std::path::Path;

use proptest::prelude::*;
use serde_json::Value;

use super::*;

/// The version whose behaviour is ours where versions differ.
const NEWEST: &str = "26.05.5";

/// Inputs for which we differ from `scontrol` on purpose, and why. The tests below check that each of them does differ.
const DIFFERENT: &[(&str, &str)] = &[
    ("n[1-]", "Slurm makes n1 of it: a forgotten end would be cut silently"),
    ("n[1 - 3]", "Slurm counts the blank as a digit and makes n01 n02 n03"),
    ("n[1- 3]", "blanks inside brackets are refused wherever they stand"),
    ("n[ 1-3]", "Slurm counts the blank as a digit and makes n01 n02 n03"),
    ("n[+1-3]", "Slurm counts the sign as a digit and makes n01 n02 n03"),
    ("n[1.5-2]", "Slurm stops reading at the dot, counts its width, and makes n001 n002"),
    ("m[,n[1-2]", "Slurm makes names with a comma and a bracket in them, which no node can have"),
    ("n[18446744073709551616]", "Slurm replaces the number by 2^64-1"),
    ("n[99999999999999999999-99999999999999999999]", "Slurm replaces the number by 2^64-1"),
    ("n[0-65536]", "Slurm allows 65536 names a range; our limit is on all names of the list"),
    ("n[1-65537]", "Slurm allows 65536 names a range; our limit is on all names of the list"),
    ("n[1-100000]", "Slurm allows 65536 names a range; our limit is on all names of the list"),
    ("n[1-1000000]", "Slurm allows 65536 names a range; our limit is on all names of the list"),
    ("-n[1-3]", "scontrol takes a leading - as an option; as text it is an ordinary name"),
    ("--n1", "scontrol takes a leading - as an option; as text it is an ordinary name"),
    ("-1", "scontrol takes a leading - as an option; as text it is an ordinary name"),
    ("n99999999999999999999,n99999999999999999998", "Slurm's compression replaces the numbers by 2^64-1; names are kept"),
];

fn conformance(op: &str) -> Vec<Value> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/hostlist/conformance.json");
    let all: Vec<Value> = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    all.into_iter().filter(|record| record["op"] == op && record["version"] == NEWEST).collect()
}

/// The reason, if the input is among those that are to differ.
fn difference(input: &str) -> Option<&'static str> {
    DIFFERENT.iter().find(|(text, _)| *text == input).map(|(_, why)| *why)
}

/// What Slurm printed, each name once, and what it printed more than once.
fn unique(printed: &[Value]) -> (Vec<&str>, Vec<&str>) {
    let (mut names, mut twice) = (Vec::new(), Vec::new());
    for name in printed.iter().map(|name| name.as_str().unwrap()) {
        if !names.contains(&name) {
            names.push(name);
        } else if !twice.contains(&name) {
            twice.push(name);
        }
    }
    (names, twice)
}

/// `Err` says how ours differs from Slurm's.
fn same_as_hostnames(record: &Value) -> Result<(), String> {
    let input = record["input"].as_str().unwrap();
    let ours = expand(input, DEFAULT_LIMIT);
    // The exit status of `show hostnames` says nothing; its text does. The message on `{` is of no account.
    let refused = record["rc"] != 0 || record["stderr"].as_str().unwrap().contains("Invalid hostlist");
    let ours = match (ours, refused) {
        (Err(_), true) => return Ok(()),
        (Err(error), false) => return Err(format!("Slurm accepts it, we say: {error}")),
        (Ok(ours), true) => return Err(format!("Slurm refuses it, we make {} names of it", ours.names.len())),
        (Ok(ours), false) => ours,
    };
    if let Some(printed) = record["expand"].as_array() {
        let (names, twice) = unique(printed);
        let as_sets = input.matches('[').count() >= 3 && !input.contains(',');
        let same = if as_sets {
            ours.names.iter().map(String::as_str).collect::<HashSet<_>>() == names.iter().copied().collect::<HashSet<_>>()
                && ours.names.len() == names.len()
        } else {
            ours.names == names
        };
        return if same && ours.duplicates == twice { Ok(()) } else { Err(format!("{ours:?} but Slurm: {printed:?}")) };
    }
    // Longer lists are kept as count, first and last; none of them has a name twice.
    let count = record["count"].as_u64().unwrap() as usize;
    let first_last = (record["first"].as_str().unwrap(), record["last"].as_str().unwrap());
    let distinct: HashSet<&String> = ours.names.iter().collect();
    if ours.names.len() == count
        && distinct.len() == count
        && ours.duplicates.is_empty()
        && (ours.names[0].as_str(), ours.names[count - 1].as_str()) == first_last
    {
        Ok(())
    } else {
        Err(format!("{} names, Slurm: {count}", ours.names.len()))
    }
}

/// `Err` says how ours differs from Slurm's.
fn same_as_compressed(record: &Value, compress: fn(&[String]) -> String) -> Result<(), String> {
    let input = record["input"].as_str().unwrap();
    let refused = record["rc"] != 0;
    // Slurm keeps duplicates here, expand does not: the items are given one by one.
    let names = match expand(input, DEFAULT_LIMIT) {
        Err(_) if refused => return Ok(()),
        Err(error) => return Err(format!("Slurm accepts it, we say: {error}")),
        Ok(_) if refused => return Err("Slurm refuses it".to_owned()),
        Ok(expansion) if expansion.duplicates.is_empty() => expansion.names,
        Ok(_) => input.split(',').map(str::to_owned).collect(),
    };
    let ours = compress(&names);
    let same = match record["compressed"].as_str() {
        Some(printed) => ours == printed,
        // The longest is kept as its length and beginning; the rest is checked by expanding it again.
        None => {
            ours.len() as u64 == record["out_len"].as_u64().unwrap()
                && ours.starts_with(record["head"].as_str().unwrap())
                && expand(&ours, DEFAULT_LIMIT).unwrap().names == names
        }
    };
    if same { Ok(()) } else { Err(format!("{ours:?} but Slurm: {}", record["compressed"])) }
}

fn check_table(op: &str, least: usize, check: impl Fn(&Value) -> Result<(), String>) {
    let records = conformance(op);
    assert!(records.len() >= least, "only {} records of {op}", records.len());
    let mut wrong = Vec::new();
    for record in &records {
        let input = record["input"].as_str().unwrap();
        match (check(record), difference(input)) {
            (Ok(()), None) | (Err(_), Some(_)) => {}
            (Err(how), None) => wrong.push(format!("{input:.80}: {how:.300}")),
            (Ok(()), Some(why)) => wrong.push(format!("{input:.80}: should differ ({why}) but does not")),
        }
    }
    assert!(wrong.is_empty(), "{op}:\n{}", wrong.join("\n"));
}

#[test]
fn expands_what_slurm_expands() {
    check_table("hostnames", 180, same_as_hostnames);
}

#[test]
fn compresses_as_slurm_does() {
    check_table("hostlist", 40, |record| same_as_compressed(record, compress));
}

#[test]
fn compresses_sorted_as_slurm_does() {
    check_table("hostlistsorted", 40, |record| same_as_compressed(record, compress_sorted));
}

#[test]
fn every_deliberate_difference_is_in_the_table() {
    let inputs: BTreeSet<String> = ["hostnames", "hostlist", "hostlistsorted"]
        .iter()
        .flat_map(|op| conformance(op))
        .map(|record| record["input"].as_str().unwrap().to_owned())
        .collect();
    for (input, _) in DIFFERENT {
        assert!(inputs.contains(*input), "{input}");
    }
}

fn names(text: &str) -> Vec<String> {
    expand(text, DEFAULT_LIMIT).unwrap().names
}

fn refused(text: &str) -> HostlistError {
    expand(text, DEFAULT_LIMIT).unwrap_err()
}

#[test]
fn r33_lists_that_other_parsers_got_wrong() {
    assert_eq!(names("nodeA,nodeB[001,003],nodeC"), ["nodeA", "nodeB001", "nodeB003", "nodeC"]);
    let product = names("foo-[10-20]-[01-02]");
    assert_eq!(product.len(), 22);
    assert_eq!((product[0].as_str(), product[1].as_str(), product[21].as_str()), ("foo-10-01", "foo-10-02", "foo-20-02"));
    assert_eq!(names("c427-032,c429-002"), ["c427-032", "c429-002"]);
    assert_eq!(names("fw0[01,11,21,42]"), ["fw001", "fw011", "fw021", "fw042"]);
}

#[test]
fn r33_bad_lists_are_refused_and_quoted() {
    assert_eq!(refused("n[3-1]").to_string(), r#""n[3-1]": column 3: range 3-1 runs backwards; expected first <= last"#);
    assert_eq!(
        refused("n[1-").to_string(),
        r#""n[1-": column 2: the bracket opened here is never closed; expected "]" after its last number"#
    );
    // Empty gives no names; the programs refuse that.
    assert_eq!(expand("", DEFAULT_LIMIT).unwrap(), Expansion::default());
    assert_eq!(expand(" ,\n\t,", DEFAULT_LIMIT).unwrap(), Expansion::default());
}

#[test]
fn errors_say_where_and_what_was_expected() {
    for (text, position, message) in [
        ("ok,n[3-1],m", 5, r#""n[3-1]": column 6: range 3-1"#),
        ("n[1,,2],m", 4, r#""n[1,,2]": column 5: a number is missing"#),
        ("n[]", 2, r#""n[]": column 3: a number is missing"#),
        ("n[1-2,]", 6, r#""n[1-2,]": column 7: a number is missing"#),
        ("n[1-]", 2, r#""n[1-]": column 3: range 1- has no end"#),
        ("n[1-,3]", 2, r#""n[1-,3]": column 3: range 1- has no end"#),
        ("n[-1]", 2, r#""n[-1]": column 3: unexpected '-'; expected a digit"#),
        ("n[1 - 3] m", 3, r#""n[1 - 3]": column 4: unexpected ' '; expected a digit, "-", "," or "]""#),
        ("n[1-2-3]", 5, r#""n[1-2-3]": column 6: unexpected '-'; expected a digit, "," or "]""#),
        ("n[1-x]", 4, r#""n[1-x]": column 5: unexpected 'x'; expected a digit"#),
        ("é,ü[1-ß]", 8, r#""ü[1-ß]": column 7: unexpected 'ß'"#),
        ("a,n[1-2,m[3-4],b", 8, r#""n[1-2,m[3-4]": column 9: unexpected 'm'"#),
        ("a n[1-2,3", 3, r#""n[1-2,3": column 4: the bracket opened here is never closed"#),
        ("a,b\u{1b}c,d", 3, r#""b\u{1b}c": column 4: unexpected '\u{1b}'; expected a printable character"#),
        (
            "n[1,18446744073709551616]",
            4,
            r#"column 5: number 18446744073709551616 is too large; expected at most 18446744073709551615"#,
        ),
    ] {
        let error = refused(text);
        assert_eq!(error.position, position, "{text}: {error}");
        assert!(error.to_string().contains(message), "{text}: {error}");
    }
}

#[test]
fn a_long_item_is_quoted_only_around_the_fault() {
    let error = refused(&format!("n[{}x,{}]", "1,".repeat(50_000), vec!["2"; 50_000].join(",")));
    let text = error.to_string();
    assert!(text.len() < 250, "{text}");
    assert!(text.contains("1,1,x,2,2") && text.contains("column 100003"), "{text}");
    let error = refused(&format!("n[{}]", "9".repeat(100_000)));
    assert!(error.to_string().len() < 350, "{error}");
}

#[test]
fn too_many_names_are_refused_before_any_is_made() {
    assert_eq!(expand("n[0-999999]", DEFAULT_LIMIT).unwrap().names.len(), 1_000_000);
    assert_eq!(refused("n[0-1000000]").problem, Problem::TooMany { names: 1_000_001, limit: 1_000_000 });
    assert_eq!(refused("n[0-999999],m").position, 12);
    // These would take longer than the test, and all memory, if they were tried.
    for text in [
        "n[0-18446744073709551615]",
        "n[0-18446744073709551615,0-18446744073709551615]",
        "n[1-99999][1-99999][1-99999][1-99999][1-99999]",
        &"[1-2]".repeat(20_000),
        &"n[1-1000000],".repeat(10),
    ] {
        assert!(matches!(refused(text).problem, Problem::TooMany { .. }), "{text:.60}");
    }
    assert_eq!(expand("a[1-3],b", 4).unwrap().names.len(), 4);
    assert!(expand("a[1-3],b,c", 4).is_err());
    assert!(expand("a", 0).is_err());
    // Duplicates count: the limit is known to hold before they are found.
    assert!(expand("a,a", 1).is_err());
}

#[test]
fn long_names_times_many_are_refused_too() {
    for text in [format!("{}[1-1000000]", "x".repeat(100_000)), format!("n[{}1-1000000]", "0".repeat(100_000))] {
        assert!(matches!(refused(&text).problem, Problem::TooLong { .. }));
    }
    // One long name, or many brackets of one number, are nobody's harm.
    assert_eq!(names(&format!("{}[1-2]", "x".repeat(100_000))).len(), 2);
    assert_eq!(names(&"[7]".repeat(50_000)), ["7".repeat(50_000)]);
}

#[test]
fn numbers_up_to_the_largest() {
    assert_eq!(names("n[18446744073709551614-18446744073709551615]"), ["n18446744073709551614", "n18446744073709551615"]);
    assert_eq!(names("n[000000000000000000000000000001]"), ["n000000000000000000000000000001"]);
    // Outside brackets any run of digits is text, and stays what it is on the way back.
    let long = names("n99999999999999999999,n100000000000000000000");
    assert_eq!(long, ["n99999999999999999999", "n100000000000000000000"]);
    assert_eq!(compress(&long), "n99999999999999999999,n100000000000000000000");
    assert_eq!(compress(&["n18446744073709551614", "n18446744073709551615"]), "n[18446744073709551614-18446744073709551615]");
}

#[test]
fn duplicates_are_dropped_once_and_told_once() {
    let expansion = expand("n[1-3],m,n[2-4],n2,m", DEFAULT_LIMIT).unwrap();
    assert_eq!(expansion.names, ["n1", "n2", "n3", "m", "n4"]);
    assert_eq!(expansion.duplicates, ["n2", "n3", "m"]);
    // The same name in two different ways.
    for (text, duplicate) in [
        ("n[1,11][1,11]", "n111"),
        ("n[1,11]1[1,11]", "n1111"),
        ("n[1-2]1,n1[1-3]", "n11"),
        ("n1[1-9],n[15]", "n15"),
        ("a[1]b2,a1b[2]", "a1b2"),
        ("n[01-09],n0[9]", "n09"),
        ("n[1-2],n1", "n1"),
        ("[1-9],7", "7"),
        ("n[5,1-9]", "n5"),
        ("a[1-9]-[1-2,2]", "a1-2"),
    ] {
        let expansion = expand(text, DEFAULT_LIMIT).unwrap();
        assert_eq!(expansion.duplicates.first().map(String::as_str), Some(duplicate), "{text}");
        let distinct: HashSet<&String> = expansion.names.iter().collect();
        assert_eq!(distinct.len(), expansion.names.len(), "{text}");
    }
}

/// The shortcut that saves looking at each name must be taken for the common forms and never for a list with repeats.
#[test]
fn names_are_looked_at_only_where_needed() {
    let proven = |text: &str| {
        let mut total = Total::new(DEFAULT_LIMIT);
        let mut items = Items::new(text);
        while items.advance().unwrap() {
            total.add(&items).unwrap();
        }
        total.cannot_repeat()
    };
    for text in [
        "",
        "n1",
        "n[0-999999]",
        "n[1,3,5,7]",
        "r[0-9]n[01-16]",
        "r[0-9][10-19]",
        "n[1-9]-ib",
        "b[1-50],a[1-50],a[60-99]",
        "a,a1,a3,b[1-2,4]",
        "n99999999999999999998,n99999999999999999999",
    ] {
        assert!(proven(text), "{text}");
    }
    for text in [
        "n1,n1",
        "n[1,1]",
        "n[2,1]",
        "n[1-10][1-10]",
        "a[1-50],a[50-99]",
        "a[1-50],a1[1-50]",
        "a[1-50],a[01-50]",
        "a1,a01",
        "n1,n3,n2,n3",
        "b,a,b",
    ] {
        assert!(!proven(text), "{text}");
    }
}

#[test]
fn compression_of_what_slurm_can_produce() {
    // The node names of slurm-facts C.1, in the text slurmctld gave them.
    let text =
        "Upper[1-2],host.example.com,k1x,k2x,p[1-2,01-03],q[8-11],r[08-11],rack0node[1-3],rack1node[1-3],solo,x-1-b-[2-3],z[1-3]";
    assert_eq!(compress(&names(text)), text);
    assert_eq!(compress_sorted(&names(text)), text);
    assert_eq!(compress::<&str>(&[]), "");
    assert_eq!(compress(&["", "n1", ""]), "n1");
    assert_eq!(compress(&["7", "a", "8", "9"]), "7,a,[8-9]");
    assert_eq!(compress(&["n9", "n10", "n011", "n012", "n12"]), "n[9-10,011-012,12]");
}

#[test]
fn sorting_goes_by_prefix_width_number() {
    assert_eq!(compress_sorted(&["n1", "n02", "n3"]), "n[1,3,02]");
    assert_eq!(compress_sorted(&["n100", "n2", "n10", "n1", "n"]), "n,n[1-2,10,100]");
    assert_eq!(compress_sorted(&["rack10node1", "rack2node1", "rack2node2", "rack10node2"]), "rack2node[1-2],rack10node[1-2]");
}

/// A name as a site might choose it, or stranger.
fn name() -> impl Strategy<Value = String> {
    prop_oneof!["[a-c]{0,2}[0-9]{1,3}", "[a-b][0-2]{0,2}-[a-b][0-9]{0,2}", "[a-c][0-9]{18,22}", "[^\\s,\\[\\p{Cc}]{1,6}",]
}

/// Texts near the grammar: every form, and every way to get it a little wrong.
fn list_like() -> impl Strategy<Value = String> {
    let piece = prop::sample::select(vec![
        "a",
        "b",
        "0",
        "1",
        "09",
        "10",
        "2",
        "[",
        "]",
        "-",
        ",",
        " ",
        "\n",
        "[1-3]",
        "[01-02]",
        "[1,11]",
        "[2,1]",
        "é",
        "+",
        "18446744073709551615",
        "99999999999999999999",
    ]);
    prop::collection::vec(piece, 0..14).prop_map(|pieces| pieces.concat())
}

/// Expansion by the shortest way one can write it: recursion, and a look at all earlier names.
fn plainly(item: &str) -> Vec<String> {
    let Some(open) = item.find('[') else { return vec![item.to_owned()] };
    let close = open + item[open..].find(']').unwrap();
    let rests = plainly(&item[close + 1..]);
    let mut out = Vec::new();
    for range in item[open + 1..close].split(',') {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        for number in first.parse::<u64>().unwrap()..=last.parse().unwrap() {
            for rest in &rests {
                out.push(format!("{}{number:0width$}{rest}", &item[..open], width = first.len()));
            }
        }
    }
    out
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1000, ..ProptestConfig::default() })]

    #[test]
    fn expand_undoes_compress(names in prop::collection::vec(name(), 0..40)) {
        let set: BTreeSet<&String> = names.iter().collect();
        for text in [compress(&names), compress_sorted(&names)] {
            let expansion = expand(&text, DEFAULT_LIMIT).unwrap();
            prop_assert_eq!(expansion.names.iter().collect::<BTreeSet<_>>(), set.clone(), "{}", text);
            prop_assert_eq!(expansion.names.len(), set.len());
        }
        // Order too, where nothing comes twice.
        let mut seen = HashSet::new();
        let once: Vec<&String> = names.iter().filter(|name| seen.insert(*name)).collect();
        let again = expand(&compress(&once), DEFAULT_LIMIT).unwrap().names;
        prop_assert_eq!(again.iter().collect::<Vec<_>>(), once);
    }

    #[test]
    fn sorted_form_does_not_depend_on_the_order(names in prop::collection::vec(name(), 0..40).prop_shuffle()) {
        let mut sorted = names.clone();
        sorted.sort();
        prop_assert_eq!(compress_sorted(&names), compress_sorted(&sorted));
    }

    #[test]
    fn natural_order_is_an_order(a in "[a-b0-1]{0,5}", b in "[a-b0-1]{0,5}", c in "[a-b0-1]{0,5}") {
        prop_assert_eq!(natural_order(&a, &b), natural_order(&b, &a).reverse());
        prop_assert_eq!(natural_order(&a, &b).is_eq(), a == b);
        if natural_order(&a, &b).is_lt() && natural_order(&b, &c).is_lt() {
            prop_assert!(natural_order(&a, &c).is_lt());
        }
    }

    #[test]
    fn any_text_is_expanded_or_refused(text in any::<String>()) {
        let _ = expand(&text, 1000).map_err(|error| error.to_string());
        let _ = compress(&[text.as_str(), &text]);
        let _ = compress_sorted(&[text.as_str(), "n1", &text]);
    }

    #[test]
    fn any_bytes_are_expanded_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..60)) {
        let _ = expand(&String::from_utf8_lossy(&bytes), 1000).map_err(|error| error.to_string());
    }

    #[test]
    fn near_misses_are_refused_inside_the_text_and_the_rest_survives_a_round_trip(text in list_like()) {
        match expand(&text, 1000) {
            Err(error) => {
                prop_assert!(error.position <= text.len() && text.is_char_boundary(error.position));
                let _ = error.to_string();
            }
            Ok(expansion) => {
                let again = expand(&compress(&expansion.names), 1000).unwrap();
                prop_assert_eq!(again.names, expansion.names);
                prop_assert_eq!(again.duplicates, Vec::<String>::new());
            }
        }
    }

    /// Also the test that the shortcut around the duplicate search is right.
    #[test]
    fn agrees_with_the_plain_way(items in prop::collection::vec("[ab]?[01]?(\\[(1|01|1-3|9-11|01-12|1,11|2,1|7-30)\\]){0,2}[x1]?(\\[[1-9]\\])?", 0..4)) {
        let mut names: Vec<String> = Vec::new();
        let mut twice: Vec<String> = Vec::new();
        for name in items.iter().filter(|item| !item.is_empty()).flat_map(|item| plainly(item)) {
            if !names.contains(&name) {
                names.push(name);
            } else if !twice.contains(&name) {
                twice.push(name);
            }
        }
        let expansion = expand(&items.join(","), DEFAULT_LIMIT).unwrap();
        prop_assert_eq!(expansion.names, names);
        prop_assert_eq!(expansion.duplicates, twice);
    }
}
