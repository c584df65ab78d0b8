//! DescribeTags: an instance and a tag's key in, that tag's value out.
//!
//! Of all questions to EC2 the one that a compute node may ask: it tells the one tag and needs only the permission `ec2:DescribeTags`,
//! where DescribeInstances would tell, and be allowed to tell, everything about every instance of the account.

use aws_sdk_ec2::types::Filter;

use super::error::Ec2Error;
use super::question::next_page;
use super::sdk::Ec2;

const OPERATION: &str = "DescribeTags";

impl Ec2 {
    /// `None`: EC2 shows no such tag of this instance. It may show one a moment later: tags, like instances, are seen some time after they
    /// were made.
    pub(crate) async fn tag_of(&self, id: &str, key: &str) -> Result<Option<String>, Ec2Error> {
        let filter = |name: &str, value: &str| Filter::builder().name(name).values(value).build();
        let filters = vec![filter("resource-id", id), filter("key", key)];
        let mut next: Option<String> = None;
        loop {
            let call = self.client().describe_tags().set_filters(Some(filters.clone())).set_next_token(next.clone());
            let page = call.send().await.map_err(|error| Ec2Error::from_sdk(OPERATION, &error))?;
            // Filters take wildcards: what a tag is, and whose, is read from the answer.
            let mut told = page.tags.unwrap_or_default().into_iter();
            let found = told.find(|tag| tag.resource_id.as_deref() == Some(id) && tag.key.as_deref() == Some(key));
            if let Some(tag) = found {
                return Ok(Some(tag.value.unwrap_or_default()));
            }
            next = next_page(OPERATION, next.as_ref(), page.next_token)?;
            if next.is_none() {
                return Ok(None);
            }
        }
    }
}
