//! The plain XML that EC2 writes, element by element: a document in, its tags and texts out, as slices of it.
//!
//! Knows no more than EC2 uses. For everything else (comments, CDATA, prefixes, attributes below the root, entities that XML does not
//! define itself, tags cut short) every function gives `None`: the whole document is then the SDK's to read. A library's reader takes all
//! of XML and several times as long; for 10,000 instances that was half of what clustermgtd's pass computed.

use std::borrow::Cow;

/// A place within a document.
pub(super) struct Cursor<'d> {
    document: &'d [u8],
    /// Behind the last tag.
    at: usize,
}

/// An element's beginning, or an end.
#[derive(Debug, Clone, Copy)]
pub(super) struct Tag<'d> {
    pub(super) kind: Kind,
    pub(super) name: &'d [u8],
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Open,
    Close,
    /// Both in one.
    Empty,
}

/// The bytes of EC2's names: letters and digits of ASCII. Looked up, since most of a document is names.
const IN_NAME: [bool; 256] = {
    let mut table = [false; 256];
    let mut byte = 0_u8;
    while byte < 128 {
        table[byte as usize] = byte.is_ascii_alphanumeric();
        byte += 1;
    }
    table
};

impl<'d> Cursor<'d> {
    pub(super) fn new(document: &'d [u8]) -> Self {
        Self { document, at: 0 }
    }

    /// Behind the last tag that was read.
    pub(super) fn at(&self) -> usize {
        self.at
    }

    /// The root element, which may have attributes.
    pub(super) fn root(&mut self) -> Option<Tag<'d>> {
        let mut inner = self.advance()?;
        if inner.starts_with(b"?") {
            inner = self.advance()?;
        }
        let length = inner.iter().position(u8::is_ascii_whitespace).unwrap_or(inner.len());
        let (name, attributes) = inner.split_at(length);
        // A ">" within a value would have ended the tag too early: then there is a quote that is not closed.
        let quotes = |quote| attributes.iter().filter(|&&byte| byte == quote).count() % 2;
        let is_plain = !name.is_empty() && name.iter().all(u8::is_ascii_alphanumeric);
        let is_whole = !attributes.ends_with(b"/") && quotes(b'"') + quotes(b'\'') == 0;
        (is_plain && is_whole).then_some(Tag { kind: Kind::Open, name })
    }

    /// Each element directly within `parent`; `each` must go to the end of the one it is given.
    pub(super) fn children(&mut self, parent: Tag<'d>, mut each: impl FnMut(&mut Self, Tag<'d>) -> Option<()>) -> Option<()> {
        if parent.kind == Kind::Empty {
            return Some(());
        }
        loop {
            let tag = self.next()?;
            match tag.kind {
                Kind::Close => return (tag.name == parent.name).then_some(()),
                Kind::Open | Kind::Empty => each(self, tag)?,
            }
        }
    }

    /// The text of an element that has no others in it.
    pub(super) fn text(&mut self, of: Tag<'d>) -> Option<Cow<'d, str>> {
        if of.kind == Kind::Empty {
            return Some(Cow::Borrowed(""));
        }
        let text = self.leaf(of)?;
        unescape(std::str::from_utf8(text).ok()?)
    }

    /// To the end of the element.
    pub(super) fn skip(&mut self, of: Tag<'d>) -> Option<()> {
        if of.kind == Kind::Empty || self.leaf(of).is_some() {
            return Some(());
        }
        let mut depth = 1_usize;
        loop {
            let tag = self.next()?;
            match tag.kind {
                Kind::Open if self.leaf(tag).is_some() => {}
                Kind::Open => depth += 1,
                Kind::Close if depth == 1 => return (tag.name == of.name).then_some(()),
                Kind::Close => depth -= 1,
                Kind::Empty => {}
            }
        }
    }

    /// To the end of an element that has no others in it, and what it held; `None`, and nothing changed, where it has some.
    fn leaf(&mut self, of: Tag<'d>) -> Option<&'d [u8]> {
        let rest = self.document.get(self.at..)?;
        let length = memchr::memchr(b'<', rest)?;
        let behind = rest[length..].strip_prefix(b"</")?.strip_prefix(of.name)?.strip_prefix(b">")?;
        self.at = self.document.len() - behind.len();
        Some(&rest[..length])
    }

    fn next(&mut self) -> Option<Tag<'d>> {
        let rest = self.document.get(self.at..)?;
        let inner = match rest {
            [b'<', inner @ ..] => inner,
            _ => &rest[memchr::memchr(b'<', rest)? + 1..],
        };
        let (kind, inner) = match inner.strip_prefix(b"/") {
            Some(inner) => (Kind::Close, inner),
            None => (Kind::Open, inner),
        };
        let length = inner.iter().position(|byte| !IN_NAME[usize::from(*byte)]).filter(|length| *length > 0)?;
        let (name, behind) = inner.split_at(length);
        let (kind, behind) = match (kind, behind) {
            (kind, [b'>', behind @ ..]) => (kind, behind),
            (Kind::Open, [b'/', b'>', behind @ ..]) => (Kind::Empty, behind),
            _ => return None,
        };
        self.at = self.document.len() - behind.len();
        Some(Tag { kind, name })
    }

    /// What stands between the next `<` and its `>`.
    fn advance(&mut self) -> Option<&'d [u8]> {
        let rest = self.document.get(self.at..)?;
        let start = memchr::memchr(b'<', rest)? + 1;
        let length = memchr::memchr(b'>', &rest[start..])?;
        self.at += start + length + 1;
        Some(&rest[start..start + length])
    }
}

/// With the characters that the five names of XML stand for; `None`: there are others.
fn unescape(text: &str) -> Option<Cow<'_, str>> {
    if !text.contains('&') {
        return Some(Cow::Borrowed(text));
    }
    let mut parts = text.split('&');
    let mut plain = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let (name, rest) = part.split_once(';')?;
        plain.push(match name {
            "lt" => '<',
            "gt" => '>',
            "amp" => '&',
            "quot" => '"',
            "apos" => '\'',
            _ => return None,
        });
        plain.push_str(rest);
    }
    Some(Cow::Owned(plain))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    /// Names and texts of the elements directly within the root.
    fn texts(document: &str) -> Option<Vec<(String, String)>> {
        let mut cursor = Cursor::new(document.as_bytes());
        let root = cursor.root()?;
        let mut found = Vec::new();
        cursor.children(root, |cursor, tag| {
            let text = cursor.text(tag)?.into_owned();
            found.push((String::from_utf8_lossy(tag.name).into_owned(), text));
            Some(())
        })?;
        Some(found)
    }

    fn pair(name: &str, text: &str) -> (String, String) {
        (name.to_owned(), text.to_owned())
    }

    #[test]
    fn elements_and_their_texts() {
        let document = "<?xml version=\"1.0\"?>\n<R xmlns=\"http://x/\">\n  <a>1</a><b/>\n<c></c><d> &lt;&amp;&gt;&quot;&apos; é </d>\n</R>\n";
        assert_eq!(texts(document).unwrap(), [pair("a", "1"), pair("b", ""), pair("c", ""), pair("d", " <&>\"' é ")]);
    }

    #[test]
    fn what_is_skipped_is_skipped_to_its_own_end() {
        let document = b"<R><a><a>1</a><b/><c><a/></c></a><z>2</z></R>";
        let mut cursor = Cursor::new(document);
        let root = cursor.root().unwrap();
        let mut last = String::new();
        let read = cursor.children(root, |cursor, tag| match tag.name {
            b"a" => cursor.skip(tag),
            _ => cursor.text(tag).map(|text| last = text.into_owned()),
        });
        assert_eq!((read, last.as_str(), cursor.at()), (Some(()), "2", document.len()));
    }

    #[test]
    fn what_is_not_plain_is_not_read() {
        for document in [
            "",
            "R",
            "<R",
            "<R>",
            "</R>",
            "<R/>",
            "<R a=\"1\"/>",
            "<R a=\">\"></R>",
            "<R><a>1</b></R>",
            "<R><a>1</a></S>",
            "<R><a>1</a>",
            "<R><a><b>1</b></a></R>",
            "<R><a x=\"1\">1</a></R>",
            "<R><x:a>1</x:a></R>",
            "<R><!-- <a> --><a>1</a></R>",
            "<R><a><![CDATA[1]]></a></R>",
            "<R><a>&#65;</a></R>",
            "<R><a>&lt</a></R>",
            "<R><></></R>",
        ] {
            assert_eq!(texts(document), None, "{document}");
        }
    }
}
