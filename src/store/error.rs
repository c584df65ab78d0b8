//! What can go wrong with the state folder: each error names the path and says what to do about it.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use crate::aws::codes::NO_CREDENTIALS;
use crate::aws::error::AwsError;
use crate::model::failure::ErrorClass;

#[derive(Debug, thiserror::Error)]
pub(crate) enum StoreError {
    #[error("cannot {what} {}", path.display())]
    Io { what: &'static str, path: PathBuf, source: io::Error },

    /// The folder is there but this user may not work in it.
    #[error(
        "cannot write in the state folder: {} {about}; give the folder and everything in it to the user that slurmctld's \
         calls run as (chown -R; slurm.conf's SlurmUser, on a ParallelCluster head node pcluster-admin), or name another folder",
        path.display()
    )]
    NotWritable { path: PathBuf, about: String, source: io::Error },

    #[error(
        "the state folder {} is on a network file system ({kind}), where locks and replaced files cannot be relied on; \
         put [state] dir on a local disk (several head nodes share a mapping with [state] store = \"dynamodb\")",
        path.display()
    )]
    NetworkFileSystem { path: PathBuf, kind: String },

    /// Somebody else held the lock for the whole of the wait.
    #[error("{} is still locked after {waited:?}, by {holder}; if that process hangs, end it and try again", path.display())]
    Busy { path: PathBuf, waited: Duration, holder: String },

    /// A daemon of which there is one in a cluster runs already.
    #[error("a {what} looks after this cluster already: {holder}, which holds {}; stop that one first", path.display())]
    Taken { what: &'static str, path: PathBuf, holder: String },

    /// The file's content is not what this program writes; nothing was changed.
    #[error("{}: {why}; nothing was changed: {advice}", at(path, *position))]
    Content {
        path: PathBuf,
        /// Line and column, from 1, where the trouble has a place.
        position: Option<(usize, usize)>,
        why: String,
        advice: &'static str,
    },

    /// A call to DynamoDB failed, all tries included.
    #[error("cannot {what} the table {table} in {region}{advice}")]
    Table { what: &'static str, table: String, region: String, advice: String, source: Box<AwsError> },

    /// An item that these programs do not write; nothing was changed.
    #[error(
        "item {item:?} of cluster {cluster:?} in the table {table}: {why}; nothing was changed: look at the item, put it right or \
         remove it, and keep others from writing to this table"
    )]
    Item { table: String, cluster: String, item: String, why: String },

    /// Others changed the same items for the whole of the wait.
    #[error("the table {table} was changed by other programs again and again for {waited:?}; try again later")]
    Contended { table: String, waited: Duration },

    /// A dry run's store was asked to write.
    #[error("{} was opened for reading only", path.display())]
    ReadOnly { path: PathBuf },

    /// A launch id that cannot be a file name, or is in use.
    #[error("launch id {launch:?} {why}")]
    Launch { launch: String, why: &'static str },
}

impl StoreError {
    /// Will the same call probably work a little later, without anybody changing anything?
    pub(crate) fn is_temporary(&self) -> bool {
        match self {
            Self::Busy { .. } | Self::Contended { .. } => true,
            // A head node that boots may be without its role for a while.
            Self::Table { source, .. } => source.class.is_retryable() || source.code == NO_CREDENTIALS,
            _ => false,
        }
    }

    /// A failed call, with what to do about it.
    pub(super) fn table(what: &'static str, table: &str, region: &str, source: AwsError) -> Self {
        // DynamoDB's words for a key that is not the table's.
        let other_keys = source.message.contains("does not match the schema")
            || source.message.contains("Query condition missed key schema element");
        let advice = if source.code == NO_CREDENTIALS {
            String::new()
        } else if source.class == ErrorClass::Identity {
            let allowed = "dynamodb:GetItem, Query, PutItem, DeleteItem and ConditionCheckItem";
            format!("; this needs a role that may use {allowed} on it (docs/mapping.md has the statement)")
        } else if source.code == "ResourceNotFoundException" {
            "; make it as docs/mapping.md says (aws dynamodb create-table), or name another one in [state] table".to_owned()
        } else if other_keys {
            "; it is no table of these programs (keys: cluster, item): name one of its own in [state] table, made as docs/mapping.md \
             says"
                .to_owned()
        } else {
            String::new()
        };
        Self::Table { what, table: table.to_owned(), region: region.to_owned(), advice, source: Box::new(source) }
    }
}

fn at(path: &std::path::Path, position: Option<(usize, usize)>) -> String {
    match position {
        Some((line, column)) => format!("{}:{line}:{column}", path.display()),
        None => path.display().to_string(),
    }
}
