//! Which of many records a refused change is about: Route 53's words in, the records they name out.

use aws_sdk_route53::operation::change_resource_record_sets::ChangeResourceRecordSetsError;
use aws_smithy_runtime_api::client::orchestrator::HttpResponse;
use aws_smithy_runtime_api::client::result::SdkError;

use super::SERVICE;
use crate::aws::codes;
use crate::aws::error::{AwsError, text_between};

pub(super) const OPERATION: &str = "ChangeResourceRecordSets";

/// The change as a whole is not carried out because of some of its records.
pub(super) const INVALID_BATCH: &str = "InvalidChangeBatch";

type Refused = SdkError<ChangeResourceRecordSetsError, HttpResponse>;

/// The failed call. A refused batch keeps all of Route 53's messages, in either of the forms that it is told in.
pub(super) fn read(error: &Refused) -> AwsError {
    let mut read = AwsError::from_sdk(SERVICE, OPERATION, error);
    let listed = match error.as_service_error() {
        Some(ChangeResourceRecordSetsError::InvalidChangeBatch(batch)) => batch.messages().join(" "),
        _ => String::new(),
    };
    if !listed.is_empty() {
        read.message = if read.message.is_empty() { listed } else { format!("{} {listed}", read.message) };
    }
    // The older form has a root of its own, which the SDK does not know.
    let body = error.raw_response().and_then(|raw| raw.body().bytes()).unwrap_or_default();
    if read.code == codes::UNREADABLE
        && let Some(inner) = text_between(body, "<InvalidChangeBatch", "</InvalidChangeBatch>")
    {
        let messages = inner.split("<Message>").skip(1).filter_map(|part| part.split_once("</Message>"));
        read.message = messages.map(|(message, _)| message.trim()).collect::<Vec<_>>().join(" ");
        read.code = INVALID_BATCH.to_owned();
        read.class = codes::classify(INVALID_BATCH, None);
    }
    read
}

/// Does the message name this record? `name` is complete; its last dot may be missing in either.
pub(super) fn names(message: &str, name: &str) -> bool {
    let part_of_name = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | '*' | '\\');
    let name = name.trim_end_matches('.').to_ascii_lowercase();
    message.split(|c| !part_of_name(c)).any(|word| word.trim_end_matches('.').eq_ignore_ascii_case(&name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_named_as_a_whole() {
        let message = "[RRSet with DNS name a-dy-b-1.other.pcluster. is not permitted in zone orchard.pcluster., Tried to create \
                       resource record set [name='a-dy-b-22.orchard.pcluster.', type='A'] but it conflicts]";
        assert!(names(message, "A-dy-b-1.other.pcluster") && names(message, "a-dy-b-22.orchard.pcluster."));
        assert!(!names(message, "a-dy-b-2.orchard.pcluster.") && !names(message, "dy-b-22.orchard.pcluster."));
        assert!(!names(message, "a-dy-b-1.orchard.pcluster."));
    }
}
