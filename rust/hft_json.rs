//! Reads JSON into minijinja's values.

use crate::hft_python::{BigInt, MAX_DEPTH};
use minijinja::value::Value;

/// Reads JSON into minijinja's values: the order of keys stays, whole numbers stay whole and exact.
pub(crate) struct Json<'s> {
    text: &'s str,
    at: usize,
    depth: usize,
}

impl<'s> Json<'s> {
    pub(crate) fn parse(text: &'s str) -> Result<Value, String> {
        let mut p = Json { text, at: 0, depth: 0 };
        p.space();
        if p.peek() != Some(b'{') {
            return Err("the context is not a JSON object".into());
        }
        let v = p.value()?;
        p.space();
        if p.at < text.len() {
            return Err(p.error("text after the value"));
        }
        Ok(v)
    }

    fn error(&self, what: &str) -> String {
        format!("JSON, byte {}: {what}", self.at)
    }

    fn peek(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }

    fn space(&mut self) {
        while matches!(self.peek(), Some(b' ' | b'\n' | b'\r' | b'\t')) {
            self.at += 1;
        }
    }

    fn take(&mut self, want: u8) -> Result<(), String> {
        if self.peek() == Some(want) {
            self.at += 1;
            return Ok(());
        }
        Err(self.error(&format!("no {:?}", want as char)))
    }

    fn word(&mut self, word: &str, v: Value) -> Result<Value, String> {
        if self.text[self.at..].starts_with(word) {
            self.at += word.len();
            return Ok(v);
        }
        Err(self.error("not a value"))
    }

    fn value(&mut self) -> Result<Value, String> {
        match self.peek() {
            Some(b'"') => Ok(Value::from(self.string()?)),
            Some(b'{') => {
                self.enter()?;
                let mut pairs = Vec::new();
                self.space();
                if self.peek() == Some(b'}') {
                    self.at += 1;
                } else {
                    loop {
                        self.space();
                        let key = self.string()?;
                        self.space();
                        self.take(b':')?;
                        self.space();
                        pairs.push((key, self.value()?));
                        if !self.more(b'}')? {
                            break;
                        }
                    }
                }
                self.depth -= 1;
                Ok(Value::from_pairs(pairs))
            }
            Some(b'[') => {
                self.enter()?;
                let mut items = Vec::new();
                self.space();
                if self.peek() == Some(b']') {
                    self.at += 1;
                } else {
                    loop {
                        self.space();
                        items.push(self.value()?);
                        if !self.more(b']')? {
                            break;
                        }
                    }
                }
                self.depth -= 1;
                Ok(Value::from(items))
            }
            Some(b't') => self.word("true", Value::from(true)),
            Some(b'f') => self.word("false", Value::from(false)),
            Some(b'n') => self.word("null", Value::from(())),
            Some(b'-' | b'0'..=b'9') => self.number(),
            _ => Err(self.error("not a value")),
        }
    }

    fn enter(&mut self) -> Result<(), String> {
        self.at += 1;
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return Err(self.error(&format!("nested deeper than {MAX_DEPTH}")));
        }
        Ok(())
    }

    /// After an item: whether another one comes, or the end.
    fn more(&mut self, end: u8) -> Result<bool, String> {
        self.space();
        match self.peek() {
            Some(b',') => {
                self.at += 1;
                Ok(true)
            }
            Some(c) if c == end => {
                self.at += 1;
                Ok(false)
            }
            _ => Err(self.error(&format!("neither ',' nor {:?}", end as char))),
        }
    }

    fn number(&mut self) -> Result<Value, String> {
        let start = self.at;
        let mut whole = true;
        if self.peek() == Some(b'-') {
            self.at += 1;
        }
        let first = self.at;
        self.digits()?;
        if self.at - first > 1 && self.text.as_bytes()[first] == b'0' {
            return Err(self.error("a number that begins with 0"));
        }
        if self.peek() == Some(b'.') {
            whole = false;
            self.at += 1;
            self.digits()?;
        }
        if matches!(self.peek(), Some(b'e' | b'E')) {
            whole = false;
            self.at += 1;
            if matches!(self.peek(), Some(b'+' | b'-')) {
                self.at += 1;
            }
            self.digits()?;
        }
        let text = &self.text[start..self.at];
        if !whole {
            return text.parse::<f64>().map(Value::from).map_err(|e| self.error(&e.to_string()));
        }
        if let Ok(n) = text.parse::<i64>() {
            return Ok(Value::from(n));
        }
        match text.parse::<i128>() {
            Ok(n) => Ok(Value::from(n)),
            Err(_) => Ok(Value::from_object(BigInt(text.to_string()))),
        }
    }

    fn digits(&mut self) -> Result<(), String> {
        let start = self.at;
        while matches!(self.peek(), Some(b'0'..=b'9')) {
            self.at += 1;
        }
        if self.at == start {
            return Err(self.error("a digit is missing"));
        }
        Ok(())
    }

    fn string(&mut self) -> Result<String, String> {
        self.take(b'"')?;
        let mut out = String::new();
        let mut start = self.at;
        loop {
            match self.peek() {
                None => return Err(self.error("a string without end")),
                Some(b'"') => {
                    out.push_str(&self.text[start..self.at]);
                    self.at += 1;
                    return Ok(out);
                }
                Some(b'\\') => {
                    out.push_str(&self.text[start..self.at]);
                    self.at += 1;
                    let c = self.peek().ok_or_else(|| self.error("a string without end"))?;
                    self.at += 1;
                    out.push(match c {
                        b'"' | b'\\' | b'/' => c as char,
                        b'b' => '\u{8}',
                        b'f' => '\u{c}',
                        b'n' => '\n',
                        b'r' => '\r',
                        b't' => '\t',
                        b'u' => self.escaped()?,
                        _ => return Err(self.error("an unknown escape")),
                    });
                    start = self.at;
                }
                Some(c) if c < 0x20 => return Err(self.error("a control character in a string")),
                Some(_) => self.at += 1,
            }
        }
    }

    fn escaped(&mut self) -> Result<char, String> {
        let unit = self.hex4()?;
        if !(0xd800..0xe000).contains(&unit) {
            return char::from_u32(unit).ok_or_else(|| self.error("not a character"));
        }
        if unit < 0xdc00 && self.text[self.at..].starts_with("\\u") {
            self.at += 2;
            let low = self.hex4()?;
            if (0xdc00..0xe000).contains(&low) {
                return char::from_u32(0x10000 + ((unit - 0xd800) << 10) + (low - 0xdc00))
                    .ok_or_else(|| self.error("not a character"));
            }
        }
        Err(self.error("half of a surrogate pair"))
    }

    fn hex4(&mut self) -> Result<u32, String> {
        let digits = self.text.as_bytes().get(self.at..self.at + 4).unwrap_or_default();
        let mut n = 0;
        for d in digits {
            n = n * 16 + (*d as char).to_digit(16).ok_or_else(|| self.error("\\u without four hex digits"))?;
        }
        if digits.len() < 4 {
            return Err(self.error("\\u without four hex digits"));
        }
        self.at += 4;
        Ok(n)
    }
}
