//! The body of a request: one object of JSON, of which only what is looked at is understood. Everything else stays as it was sent,
//! to the byte.

use std::borrow::Cow;
use std::fmt;

use serde::de::{Deserialize, DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::Value;
use serde_json::value::{RawValue, to_raw_value};

/// The members of an object, in their order.
#[derive(Clone, Debug, Default)]
pub struct Members(Vec<(String, Box<RawValue>)>);

/// Why a body is not passed on.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadBody {
    /// It is something else than an object.
    #[error("the body is not an object of JSON: {0}")]
    NotAnObject(String),
    /// Servers take the first, or the last, or either whatever its case.
    #[error("the body has the member `{0}` twice, or in two spellings")]
    Twice(String),
    /// What should be a word or a number is as long as a book.
    #[error("the member `{0}` of the body is too long")]
    TooLong(String),
    /// Servers may take it for another name.
    #[error("the body has a member whose name is not plain")]
    Name,
}

/// The most members, or items of a list, that are read.
const MOST: usize = 1024;
/// The longest value that is understood: each takes a hundred times its length.
pub(super) const LONGEST: usize = 64 << 10;

impl Members {
    /// Reads a body.
    pub fn parse(body: &[u8]) -> Result<Self, BadBody> {
        let mut reader = serde_json::Deserializer::from_slice(body);
        let members = reader.deserialize_map(Reader).map_err(wrong)?;
        reader.end().map_err(wrong)?;
        Self::of(members)
    }

    fn of(members: Vec<(String, Box<RawValue>)>) -> Result<Self, BadBody> {
        let plain = |name: &str| name.bytes().all(|byte| byte.is_ascii_graphic() || byte == b' ');
        if !members.iter().all(|(name, _)| plain(name)) {
            return Err(BadBody::Name);
        }
        let mut names: Vec<String> = members.iter().map(|(name, _)| spelling(name)).collect();
        names.sort_unstable();
        match names.windows(2).find(|pair| pair[0] == pair[1]) {
            Some(pair) => Err(BadBody::Twice(pair[0].clone())),
            None => Ok(Self(members)),
        }
    }

    /// The names of all members.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(|(name, _)| name.as_str())
    }

    /// All members: their names, and their values as texts.
    pub fn texts(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(name, value)| (name.as_str(), value.get()))
    }

    /// The member of this name, or of this name in another spelling, which some servers take for it.
    fn place(&self, name: &str) -> Option<usize> {
        self.0.iter().position(|(own, _)| is_same(own, name))
    }

    /// What a member says, which is a word or a number; dots lead into objects. It is found in whatever spelling a server may find it.
    pub fn get(&self, path: &str) -> Result<Option<Value>, BadBody> {
        let (name, rest) = split(path);
        let Some(place) = self.place(name) else { return Ok(None) };
        let raw = self.0[place].1.get();
        match rest {
            Some(rest) => Self::parse(raw.as_bytes())?.get(rest),
            None if raw.len() > LONGEST => Err(BadBody::TooLong(name.to_owned())),
            // What cannot be read here may be read elsewhere.
            None => serde_json::from_str(raw).map(Some).map_err(wrong),
        }
    }

    /// Whether there is such a member, whatever it says.
    pub fn has(&self, path: &str) -> Result<bool, BadBody> {
        let (name, rest) = split(path);
        match (self.place(name), rest) {
            (None, _) => Ok(false),
            (Some(place), Some(rest)) => Self::parse(self.0[place].1.get().as_bytes())?.has(rest),
            (Some(_), None) => Ok(true),
        }
    }

    /// Takes those objects out of a list that are not to be kept, and says whether it is empty then. What is kept stays as it was.
    pub fn retain<E: From<BadBody>>(
        &mut self,
        name: &str,
        mut is_kept: impl FnMut(&Self) -> Result<bool, E>,
    ) -> Result<bool, E> {
        let Some(place) = self.place(name) else { return Ok(false) };
        let Items(items) =
            serde_json::from_str(self.0[place].1.get()).map_err(|error| E::from(wrong(error)))?;
        let mut kept = Vec::with_capacity(items.len());
        for item in &items {
            if is_kept(&Self::parse(item.get().as_bytes())?)? {
                kept.push(item.get());
            }
        }
        let is_empty = kept.is_empty();
        if kept.len() < items.len() {
            let text = format!("[{}]", kept.join(","));
            self.0[place].1 = RawValue::from_string(text).map_err(|error| E::from(wrong(error)))?;
        }
        Ok(is_empty)
    }

    /// Has a member say this, or be gone where it is null; objects on the way are made.
    pub fn set(&mut self, path: &str, value: &Value) -> Result<(), BadBody> {
        let (name, rest) = split(path);
        let place = self.place(name);
        let value = match rest {
            None if value.is_null() => {
                self.0.retain(|(own, _)| !is_same(own, name));
                return Ok(());
            }
            None => to_raw_value(value).map_err(wrong)?,
            Some(rest) => {
                let mut inner = match place {
                    Some(place) => Self::parse(self.0[place].1.get().as_bytes())?,
                    None => Self::default(),
                };
                inner.set(rest, value)?;
                RawValue::from_string(inner.write()).map_err(wrong)?
            }
        };
        match place {
            Some(place) => self.0[place] = (name.to_owned(), value),
            None => self.0.push((name.to_owned(), value)),
        }
        Ok(())
    }

    /// The object, as it is passed on.
    pub fn write(&self) -> String {
        let mut text = String::from("{");
        for (at, (name, value)) in self.0.iter().enumerate() {
            if at > 0 {
                text.push(',');
            }
            text.push_str(&Value::from(name.as_str()).to_string());
            text.push(':');
            text.push_str(value.get());
        }
        text.push('}');
        text
    }
}

/// A name in one spelling, of those that some server takes for the same: `maxTokens`, `max_tokens`, `MaxTokens`.
fn spelling(name: &str) -> String {
    name.to_ascii_lowercase().replace('_', "")
}

fn is_same(one: &str, other: &str) -> bool {
    spelling(one) == spelling(other)
}

fn split(path: &str) -> (&str, Option<&str>) {
    path.split_once('.').map_or((path, None), |(name, rest)| (name, Some(rest)))
}

fn wrong(error: serde_json::Error) -> BadBody {
    BadBody::NotAnObject(error.to_string())
}

/// Whether one of these is the name of a member, however deep, in whatever spelling.
pub fn mentions(body: &[u8], names: &[&str]) -> bool {
    let mut reader = serde_json::Deserializer::from_slice(body);
    let mut found = false;
    // What is no JSON is refused by others.
    let _ = Mention { names, found: &mut found }.deserialize(&mut reader);
    found
}

/// Goes through everything, and keeps nothing.
struct Mention<'a> {
    names: &'a [&'a str],
    found: &'a mut bool,
}

impl Mention<'_> {
    fn next(&mut self) -> Mention<'_> {
        Mention { names: self.names, found: self.found }
    }
}

impl<'de> DeserializeSeed<'de> for Mention<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Mention<'_> {
    type Value = ();

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("anything")
    }

    fn visit_map<A: MapAccess<'de>>(mut self, mut map: A) -> Result<(), A::Error> {
        while let Some(name) = map.next_key::<Cow<'de, str>>()? {
            *self.found |= self.names.iter().any(|own| is_same(own, &name));
            map.next_value_seed(self.next())?;
        }
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(mut self, mut list: A) -> Result<(), A::Error> {
        while list.next_element_seed(self.next())?.is_some() {}
        Ok(())
    }

    fn visit_bool<E>(self, _: bool) -> Result<(), E> {
        Ok(())
    }

    fn visit_i64<E>(self, _: i64) -> Result<(), E> {
        Ok(())
    }

    fn visit_u64<E>(self, _: u64) -> Result<(), E> {
        Ok(())
    }

    fn visit_f64<E>(self, _: f64) -> Result<(), E> {
        Ok(())
    }

    fn visit_str<E>(self, _: &str) -> Result<(), E> {
        Ok(())
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }
}

/// The items of a list, where they stand; none of `null`.
#[derive(Default)]
struct Items<'de>(Vec<&'de RawValue>);

impl<'de> Deserialize<'de> for Items<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Reading;

        impl<'de> Visitor<'de> for Reading {
            type Value = Items<'de>;

            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("a list")
            }

            fn visit_unit<E>(self) -> Result<Items<'de>, E> {
                Ok(Items::default())
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Items<'de>, A::Error> {
                let mut items = Vec::new();
                while let Some(item) = list.next_element()? {
                    if items.len() == MOST {
                        return Err(serde::de::Error::custom(format!("more than {MOST} items")));
                    }
                    items.push(item);
                }
                Ok(Items(items))
            }
        }

        deserializer.deserialize_any(Reading)
    }
}

struct Reader;

impl<'de> Visitor<'de> for Reader {
    type Value = Vec<(String, Box<RawValue>)>;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut members = Vec::new();
        while let Some(member) = map.next_entry()? {
            if members.len() == MOST {
                return Err(serde::de::Error::custom(format!("more than {MOST} members")));
            }
            members.push(member);
        }
        Ok(members)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_long_is_not_understood() {
        let many = format!("[{}]", vec!["{}"; 100_000].join(","));
        let text = format!(r#"{{"model":{many},"tools":{many},"deep":{{"x":{many}}}}}"#);
        let mut members = Members::parse(text.as_bytes()).unwrap();
        assert_eq!(members.get("model"), Err(BadBody::TooLong("model".into())));
        assert_eq!(members.get("deep.x"), Err(BadBody::TooLong("x".into())));
        assert_eq!(
            (members.has("model"), members.has("deep.x"), members.has("deep.y")),
            (Ok(true), Ok(true), Ok(false))
        );
        let error = members.retain("tools", |_| Ok::<_, BadBody>(true)).unwrap_err();
        assert!(error.to_string().contains("more than 1024 items"), "{error}");
    }

    #[test]
    fn names_are_found_wherever_they_are() {
        for (text, found) in [
            (r#"{"a":{"b":[1,{"file_id":2}]}}"#, true),
            (r#"{"a":[{"\u0066ileId":null}]}"#, true),
            (r#"{"a":"file_id","b":[["file_id"]]}"#, false),
            (r#"{"a":[{"x":1.5},true,null,-1]"#, false),
        ] {
            assert_eq!(mentions(text.as_bytes(), &["previous", "file_id"]), found, "{text}");
        }
    }

    #[test]
    fn what_is_not_looked_at_stays_as_it_was() {
        let text =
            r#"{"model":"a","odd":1.0e0,"deep":{"x" : [1,  2], "x":3},"max_tokens":99999999999999999999}"#;
        let mut members = Members::parse(text.as_bytes()).unwrap();
        assert_eq!(members.write(), text);
        members.set("model", &Value::from("b")).unwrap();
        members.set("odd", &Value::Null).unwrap();
        members.set("generationConfig.maxOutputTokens", &Value::from(5)).unwrap();
        assert_eq!(
            members.write(),
            r#"{"model":"b","deep":{"x" : [1,  2], "x":3},"max_tokens":99999999999999999999,"generationConfig":{"maxOutputTokens":5}}"#
        );
        assert_eq!(members.get("generationConfig.maxOutputTokens"), Ok(Some(Value::from(5))));
        assert_eq!(members.get("missing.further"), Ok(None));
    }

    #[test]
    fn a_member_is_one_however_it_is_spelt() {
        for text in [
            r#"{"model":"a","model":"b"}"#,
            r#"{"model":"a","Model":"b"}"#,
            r#"{"model":"a","mod\u0065l":"b"}"#,
        ] {
            assert_eq!(
                Members::parse(text.as_bytes()).unwrap_err(),
                BadBody::Twice("model".into()),
                "{text}"
            );
        }
        let spelt = Members::parse(br#"{"safety_settings":1,"safetySettings":2}"#);
        assert_eq!(spelt.unwrap_err(), BadBody::Twice("safetysettings".into()));
        for unreadable in [r#"{"tools":["\ud800"]}"#, r#"{"tools":1e999}"#] {
            assert!(Members::parse(unreadable.as_bytes()).unwrap().get("tools").is_err(), "{unreadable}");
        }
        // The long s is an s, and the sign of Kelvin a k, to some.
        for text in ["{\"me\u{17f}\u{17f}ages\":1}", "{\"max_to\u{212a}ens\":1}", "{\"a\\u0000\":1}"] {
            assert_eq!(Members::parse(text.as_bytes()).unwrap_err(), BadBody::Name, "{text}");
        }
        let mut members = Members::parse(br#"{"MODEL":"large"}"#).unwrap();
        assert_eq!(members.get("model"), Ok(Some(Value::from("large"))));
        members.set("model", &Value::from("small")).unwrap();
        assert_eq!(members.write(), r#"{"model":"small"}"#);
        let inner =
            Members::parse(br#"{"generationConfig":{"maxOutputTokens":1,"MaxOutputTokens":2}}"#).unwrap();
        assert!(inner.get("generationConfig.maxOutputTokens").is_err());
    }

    #[test]
    fn what_is_no_object_is_refused() {
        for text in ["", "[]", "1", "{", "{}x", "{\"a\":}", "\u{feff}{}"] {
            assert!(matches!(Members::parse(text.as_bytes()), Err(BadBody::NotAnObject(_))), "{text}");
        }
        let many: Vec<String> = (0..=MOST).map(|number| format!("\"a{number}\":1")).collect();
        assert!(Members::parse(format!("{{{}}}", many.join(",")).as_bytes()).is_err());
        let deep = format!("{{\"a\":{}1{}}}", "[".repeat(100_000), "]".repeat(100_000));
        let _ = Members::parse(deep.as_bytes());
    }
}
