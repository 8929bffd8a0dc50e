//! Filters that make texts of texts.

use crate::hft_filters::Args;
use crate::hft_python::{py_str, to_py_str, Sink, BYTES_PER_FUEL};
use crate::hft_str::{is_space, lines};
use minijinja::formatting::{self, FormatStyle};
use minijinja::value::{Kwargs, Rest, Value};
use minijinja::{Error, ErrorKind, State};

/// The filter format, with Python's str for %s and repr for %r.
pub(crate) fn format(state: &State, format: &Value, args: Rest<Value>, kw: Kwargs) -> Result<Value, Error> {
    let text = to_py_str(state, format)?;
    let mut args = args.0;
    if args.is_empty() {
        args.push(Value::from(kw));
        width(state, &text)?;
        return formatting::format(FormatStyle::Printf, &text, &args).map(Value::from);
    }
    let mut out = String::with_capacity(text.len());
    let mut n = 0;
    let mut rest = text.as_str();
    while let Some(i) = rest.find('%') {
        out.push_str(&rest[..=i]);
        rest = &rest[i + 1..];
        let spec = rest
            .find(|c: char| !matches!(c, '0'..='9' | '.' | '-' | '+' | ' ' | '#' | 'h' | 'l' | 'L'))
            .unwrap_or(rest.len());
        out.push_str(&rest[..spec]);
        rest = &rest[spec..];
        let Some(kind) = rest.chars().next() else { break };
        rest = &rest[kind.len_utf8()..];
        out.push(if kind == 'r' { 's' } else { kind });
        match kind {
            '%' => continue,
            '*' => return Err(Error::new(ErrorKind::InvalidOperation, "a width of * is not supported")),
            _ => {}
        }
        if let (Some(v), 's' | 'r') = (args.get_mut(n), kind) {
            let mut sink = Sink::new(state);
            py_str(&mut sink, v, kind == 'r', 0)?;
            *v = Value::from(sink.out);
        }
        n += 1;
    }
    out.push_str(rest);
    width(state, &out)?;
    formatting::format(FormatStyle::Printf, &out, &args).map(Value::from)
}

/// Pays for the width that a format may ask for.
pub(crate) fn width(state: &State, format: &str) -> Result<(), Error> {
    let numbers = format.split(|c: char| !c.is_ascii_digit()).filter(|n| !n.is_empty());
    let sum = numbers.map(|n| n.parse::<u64>().unwrap_or(u64::MAX)).fold(0, u64::saturating_add);
    state.consume_fuel(sum / BYTES_PER_FUEL as u64)
}

/// str.format of Python. Texts without format specifications, which are nearly all, get Python's str.
pub(crate) fn str_format(state: &State, s: &str, args: &[Value]) -> Result<Value, Error> {
    let special = |c: char| matches!(c, ':' | '!' | '.' | '[');
    let plain = s.split('{').skip(1).all(|f| !f.split('}').next().unwrap_or_default().contains(special));
    if !plain {
        width(state, s)?;
        return formatting::format(FormatStyle::StrFormat, s, args).map(Value::from);
    }
    let fields = s.matches('{').count();
    let mut texts = Vec::with_capacity(args.len());
    for a in args {
        if let Ok(kw) = Kwargs::try_from(a.clone()) {
            let mut pairs = Vec::new();
            for name in kw.args() {
                let v = kw.get::<Value>(name)?;
                pairs.push((name.to_string(), Value::from(to_py_str(state, &v)?)));
            }
            texts.push(Value::from(pairs.into_iter().collect::<Kwargs>()));
            continue;
        }
        let text = to_py_str(state, a)?;
        state.consume_fuel((fields.saturating_mul(text.len()) / BYTES_PER_FUEL) as u64)?;
        texts.push(Value::from(text));
    }
    formatting::format(FormatStyle::StrFormat, s, &texts).map(Value::from)
}

/// The filter replace(s, old, new, count=None).
pub(crate) fn replace(state: &State, v: &Value, places: Rest<Value>, names: Kwargs) -> Result<Value, Error> {
    let args = Args::new(places, names, 3)?;
    let (Some(old), Some(new)) = (args.get(0, "old")?, args.get(1, "new")?) else {
        return Err(Error::from(ErrorKind::MissingArgument));
    };
    let count = args.int(2, "count")?;
    args.done()?;
    let (s, old, new) = (to_py_str(state, v)?, to_py_str(state, &old)?, to_py_str(state, &new)?);
    Ok(Value::from(replaced(state, &s, &old, &new, count.unwrap_or(-1))?))
}

/// str.replace of Python, paid for before it is made.
pub(crate) fn replaced(state: &State, s: &str, old: &str, new: &str, count: i64) -> Result<String, Error> {
    let found = if old.is_empty() { s.chars().count() + 1 } else { s.matches(old).count() };
    let n = usize::try_from(count).unwrap_or(usize::MAX).min(found);
    let size = s.len().saturating_add(n.saturating_mul(new.len()));
    state.consume_fuel(((s.len() + size) / BYTES_PER_FUEL) as u64)?;
    Ok(s.replacen(old, new, n))
}

/// The filter indent(s, width=4, first=False, blank=False).
pub(crate) fn indent(state: &State, v: &Value, places: Rest<Value>, names: Kwargs) -> Result<Value, Error> {
    let args = Args::new(places, names, 3)?;
    let width = args.get(0, "width")?.unwrap_or(Value::from(4));
    let first = args.flag(1, "first")?;
    let blank = args.flag(2, "blank")?;
    args.done()?;
    let indention = match width.as_str() {
        Some(s) => s.to_string(),
        None => " ".repeat(i64::try_from(width)?.clamp(0, 1000) as usize),
    };
    let s = to_py_str(state, v)? + "\n";
    state.consume_fuel((s.len() / BYTES_PER_FUEL) as u64)?;
    let mut out = String::new();
    for (i, line) in lines(&s, false).into_iter().enumerate() {
        if i > 0 {
            out.push('\n');
        }
        if if i == 0 { first } else { blank || !line.is_empty() } {
            out.push_str(&indention);
            state.consume_fuel((indention.len() / BYTES_PER_FUEL) as u64 + 1)?;
        }
        out.push_str(line);
    }
    Ok(Value::from(out))
}

/// The filter truncate(s, length=255, killwords=False, end="...", leeway=5).
pub(crate) fn truncate(state: &State, v: &Value, places: Rest<Value>, names: Kwargs) -> Result<Value, Error> {
    let args = Args::new(places, names, 4)?;
    let length = args.int(0, "length")?.unwrap_or(255);
    let killwords = args.flag(1, "killwords")?;
    let end = args.get(2, "end")?.map(|e| to_py_str(state, &e)).transpose()?.unwrap_or_else(|| "...".into());
    let leeway = args.int(3, "leeway")?.unwrap_or(5);
    args.done()?;
    let s = to_py_str(state, v)?;
    let keep = length - end.chars().count() as i64;
    if keep < 0 || leeway < 0 {
        return Err(Error::new(ErrorKind::InvalidOperation, "truncate: length or leeway is too small"));
    }
    if s.chars().count() as i64 <= length.saturating_add(leeway) {
        return Ok(Value::from(s));
    }
    let cut = s.char_indices().nth(keep as usize).map_or(s.len(), |(i, _)| i);
    let head = &s[..cut];
    let head = if killwords { head } else { head.rsplit_once(' ').map_or(head, |(head, _)| head) };
    Ok(Value::from(format!("{head}{end}")))
}

/// The filter wordcount(s): runs of letters, digits and underscores.
pub(crate) fn wordcount(state: &State, v: &Value) -> Result<Value, Error> {
    let s = to_py_str(state, v)?;
    state.consume_fuel((s.len() / 8) as u64)?;
    Ok(Value::from(s.split(|c: char| !c.is_alphanumeric() && c != '_').filter(|w| !w.is_empty()).count()))
}

/// The filter center(s, width=80), and str.center.
pub(crate) fn center(state: &State, v: &Value, width: Option<i64>) -> Result<Value, Error> {
    let s = to_py_str(state, v)?;
    let free = width.unwrap_or(80).saturating_sub(s.chars().count() as i64).max(0);
    let width = width.unwrap_or(80);
    state.consume_fuel(free as u64)?;
    // As CPython rounds.
    let left = free / 2 + (free & width & 1);
    Ok(Value::from(format!("{}{s}{}", " ".repeat(left as usize), " ".repeat((free - left) as usize))))
}

/// The filter striptags(s): without comments and tags, white space as single blanks.
pub(crate) fn striptags(state: &State, v: &Value) -> Result<Value, Error> {
    let s = to_py_str(state, v)?;
    state.consume_fuel((s.len() / 8) as u64)?;
    let mut out = String::with_capacity(s.len());
    let mut rest = s.as_str();
    while let Some(i) = rest.find('<') {
        let (end, length) = if rest[i..].starts_with("<!--") { ("-->", 3) } else { (">", 1) };
        let Some(n) = rest[i..].find(end) else { break };
        out.push_str(&rest[..i]);
        rest = &rest[i + n + length..];
    }
    out.push_str(rest);
    let words: Vec<&str> = out.split(is_space).filter(|w| !w.is_empty()).collect();
    let text = words.join(" ");
    Ok(Value::from(
        text.replace("&lt;", "<")
            .replace("&gt;", ">")
            .replace("&#34;", "\"")
            .replace("&#39;", "'")
            .replace("&amp;", "&"),
    ))
}

/// The filter urlencode(s), of a text.
pub(crate) fn urlencode(state: &State, v: &Value) -> Result<Value, Error> {
    if v.as_object().is_some() {
        return Err(Error::new(ErrorKind::InvalidOperation, "urlencode takes a text"));
    }
    let s = to_py_str(state, v)?;
    state.consume_fuel((s.len() / 8) as u64)?;
    let mut out = String::with_capacity(s.len());
    for b in s.bytes() {
        if b.is_ascii_alphanumeric() || b"-._~/".contains(&b) {
            out.push(b as char)
        } else {
            out.push_str(&format!("%{b:02X}"))
        }
    }
    Ok(Value::from(out))
}
