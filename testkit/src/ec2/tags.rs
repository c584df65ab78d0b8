//! DescribeTags: the tags of instances, by instance and key. Other resources have none here, other filters do not exist.

use std::fmt::Write as _;

use super::describe::{page, read_filters};
use super::params::{Params, glob};
use super::state::World;
use super::xml::{ApiError, element, escape};

const FILTERS: [&str; 2] = ["resource-id", "key"];

impl World {
    /// An unknown instance simply has no tags, and so has one that is not visible yet.
    pub(crate) fn describe_tags(&mut self, params: &Params) -> Result<String, ApiError> {
        let filters = read_filters(params, &FILTERS)?;
        let (limit, from) = page(params, &[], 5)?;
        let limit = limit.unwrap_or(1000).min(self.behaviour.page_size.map_or(usize::MAX, |size| size.max(1) as usize));
        let holds = |name: &str, text: &str| {
            filters.iter().filter(|filter| filter.name == name).all(|filter| filter.values.iter().any(|value| glob(value, text)))
        };
        let now = self.clock.now_ms();
        let asked: Vec<usize> = (0..self.machines.len())
            .filter(|at| !self.is_forgotten(&self.machines[*at]) && holds("resource-id", self.machines[*at].id()))
            .collect();
        let mut found = Vec::new();
        for at in asked {
            let machine = &mut self.machines[at];
            if !machine.hidden.look(now) {
                let tags = machine.seen.tags.iter().filter(|(key, _)| holds("key", key));
                found.extend(tags.map(|(key, value)| (machine.id().to_owned(), key.clone(), value.clone())));
            }
        }
        let mut out = String::from("<tagSet>");
        for (id, key, value) in found.iter().skip(from).take(limit) {
            let (key, value) = (escape(key), escape(value));
            let _ = write!(
                out,
                "<item><resourceId>{id}</resourceId><resourceType>instance</resourceType><key>{key}</key><value>{value}</value></item>"
            );
        }
        out.push_str("</tagSet>");
        if found.len() > from.saturating_add(limit) {
            element(&mut out, "nextToken", &format!("page-{}", from + limit));
        }
        Ok(out)
    }
}
