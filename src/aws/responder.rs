//! A few lines of HTTP server for the tests of this folder: answers from a list, keeps what was asked.

#![allow(clippy::unwrap_used)]

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use crate::config::settings::AwsSettings;
use crate::ec2::sdk::Ec2;

#[derive(Debug, Clone)]
pub(crate) enum Reply {
    /// Status and body.
    Text(u16, String),
    /// A session token of instance metadata.
    Token(String),
    /// The connection is closed without an answer.
    HangUp,
    /// Nothing, for ever.
    Silence,
    /// A good status and only half of the promised body.
    Half,
}

/// One request: its first line, and the form it carried.
#[derive(Debug, Clone)]
pub(crate) struct Asked {
    pub(crate) line: String,
    pub(crate) form: BTreeMap<String, String>,
}

impl Asked {
    pub(crate) fn get(&self, key: &str) -> &str {
        self.form.get(key).map_or("", String::as_str)
    }
}

type Answer = Box<dyn FnMut(&Asked) -> Reply + Send>;

#[derive(Clone)]
pub(crate) struct Responder {
    pub(crate) url: String,
    asked: Arc<Mutex<Vec<Asked>>>,
}

impl Responder {
    /// Answers in this order, then with 500.
    pub(crate) async fn listing(replies: impl IntoIterator<Item = Reply>) -> Self {
        let mut replies: VecDeque<Reply> = replies.into_iter().collect();
        Self::new(move |_| replies.pop_front().unwrap_or_else(|| error(500, "NoMoreReplies", ""))).await
    }

    pub(crate) async fn new(answer: impl FnMut(&Asked) -> Reply + Send + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let asked = Arc::new(Mutex::new(Vec::new()));
        let answer: Arc<Mutex<Answer>> = Arc::new(Mutex::new(Box::new(answer)));
        let kept = asked.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(serve(stream, kept.clone(), answer.clone()));
            }
        });
        Self { url, asked }
    }

    pub(crate) fn asked(&self) -> Vec<Asked> {
        self.asked.lock().unwrap().clone()
    }

    /// A client of this server with keys from a credentials file, so that the test's environment does not matter.
    pub(crate) async fn ec2(&self, change: impl FnOnce(&mut AwsSettings)) -> Ec2 {
        let mut settings = settings();
        settings.endpoint_url = Some(self.url.clone());
        change(&mut settings);
        Ec2::connect(&settings, "eu-west-1").await.unwrap()
    }
}

pub(crate) fn settings() -> AwsSettings {
    AwsSettings {
        dynamodb_endpoint_url: None,
        route53_endpoint_url: None,
        endpoint_url: None,
        profile: None,
        config_file: None,
        credentials_file: Some(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/ec2/credentials").into()),
        proxy: None,
        no_proxy: Vec::new(),
        ca_bundle: None,
        attempts: 1,
        // Nothing of this is waited for where the other side answers, however slow the machine.
        connect_timeout: Duration::from_secs(60),
        attempt_timeout: Duration::from_secs(60),
        operation_timeout: Duration::from_secs(120),
    }
}

pub(crate) fn error(status: u16, code: &str, message: &str) -> Reply {
    Reply::Text(
        status,
        format!(
            "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<Response><Errors><Error><Code>{code}</Code><Message>{message}</Message>\
             </Error></Errors><RequestID>req-{code}</RequestID></Response>"
        ),
    )
}

pub(crate) fn ok(operation: &str, body: &str) -> Reply {
    Reply::Text(
        200,
        format!(
            "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<{operation}Response xmlns=\"http://ec2.amazonaws.com/doc/2016-11-15/\">\
             <requestId>req-1</requestId>{body}</{operation}Response>"
        ),
    )
}

async fn serve(mut stream: TcpStream, asked: Arc<Mutex<Vec<Asked>>>, answer: Arc<Mutex<Answer>>) {
    let mut buffer = Vec::new();
    while let Some(request) = read(&mut stream, &mut buffer).await {
        asked.lock().unwrap().push(request.clone());
        let reply = (answer.lock().unwrap())(&request);
        let mut more = "";
        let (status, body, promised) = match reply {
            Reply::Text(status, body) => (status, body.clone(), body.len()),
            Reply::Token(body) => {
                more = "x-aws-ec2-metadata-token-ttl-seconds: 21600\r\n";
                (200, body.clone(), body.len())
            }
            Reply::Half => (200, "<?xml version=\"1.0\"?><RunInstancesResponse><instan".into(), 5000),
            Reply::HangUp => return,
            Reply::Silence => std::future::pending().await,
        };
        let id = if status == 200 { "x-amzn-requestid: req-1\r\n" } else { "" };
        let head = format!("HTTP/1.1 {status} X\r\ncontent-type: text/xml\r\n{id}{more}content-length: {promised}\r\n\r\n");
        if stream.write_all(head.as_bytes()).await.is_err() || stream.write_all(body.as_bytes()).await.is_err() {
            return;
        }
        if promised != body.len() {
            return;
        }
    }
}

async fn read(stream: &mut TcpStream, buffer: &mut Vec<u8>) -> Option<Asked> {
    loop {
        if let Some(end) = buffer.windows(4).position(|four| four == b"\r\n\r\n") {
            let head = String::from_utf8_lossy(&buffer[..end]).into_owned();
            let length = head.lines().filter_map(|line| line.split_once(':'));
            let length = length.filter(|(name, _)| name.eq_ignore_ascii_case("content-length"));
            let length: usize = length.map(|(_, value)| value.trim().parse().unwrap()).next().unwrap_or(0);
            if buffer.len() >= end + 4 + length {
                let body: Vec<u8> = buffer.drain(..end + 4 + length).skip(end + 4).collect();
                let line = head.lines().next().unwrap_or_default().to_owned();
                return Some(Asked { line, form: form(&String::from_utf8_lossy(&body)) });
            }
        }
        let mut more = [0; 16 * 1024];
        match stream.read(&mut more).await {
            Ok(0) | Err(_) => return None,
            Ok(count) => buffer.extend_from_slice(&more[..count]),
        }
    }
}

fn form(body: &str) -> BTreeMap<String, String> {
    body.split('&').filter_map(|pair| pair.split_once('=')).map(|(key, value)| (plain(key), plain(value))).collect()
}

fn plain(text: &str) -> String {
    let mut bytes = Vec::new();
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        match byte {
            b'+' => bytes.push(b' '),
            b'%' => {
                let code: Vec<u8> = rest.by_ref().take(2).collect();
                bytes.push(u8::from_str_radix(std::str::from_utf8(&code).unwrap(), 16).unwrap());
            }
            byte => bytes.push(byte),
        }
    }
    String::from_utf8(bytes).unwrap()
}
