//! Python's string methods, where minijinja-contrib lacks them or has them otherwise.

use crate::hft_ops::{hashable, pay, pay_both};
use crate::hft_python::BYTES_PER_FUEL;
use crate::hft_text::{center, replaced, str_format};
use minijinja::value::{from_args, Kwargs, Tuple, Value, ValueKind};
use minijinja::{Error, ErrorKind, State};

/// str.isspace of Python: Unicode's white space, and the four separators of ASCII.
pub(crate) fn is_space(c: char) -> bool {
    c.is_whitespace() || ('\u{1c}'..='\u{1f}').contains(&c)
}

pub(crate) fn strip<'s>(s: &'s str, chars: Option<&str>, left: bool, right: bool) -> &'s str {
    let cut = |c: char| match chars {
        Some(set) => set.contains(c),
        None => is_space(c),
    };
    let s = if left { s.trim_start_matches(cut) } else { s };
    if right {
        s.trim_end_matches(cut)
    } else {
        s
    }
}

/// A list of parts of a text, each of which takes a fuel: they need much more memory than the text.
pub(crate) fn list(state: &State, parts: Vec<&str>) -> Result<Value, Error> {
    state.consume_fuel(parts.len() as u64)?;
    Ok(Value::from(parts.into_iter().map(Value::from).collect::<Vec<Value>>()))
}

pub(crate) fn split(state: &State, s: &str, sep: Option<&str>, max: i64, right: bool) -> Result<Value, Error> {
    let max = if max < 0 { usize::MAX } else { max as usize };
    let mut parts: Vec<&str> = Vec::new();
    match sep {
        Some("") => return Err(Error::new(ErrorKind::InvalidOperation, "empty separator")),
        Some(sep) if right => {
            parts.extend(s.rsplitn(max.saturating_add(1), sep));
            parts.reverse();
        }
        Some(sep) => parts.extend(s.splitn(max.saturating_add(1), sep)),
        None if right => {
            let mut rest = s.trim_end_matches(is_space);
            while !rest.is_empty() {
                if parts.len() == max {
                    parts.push(rest);
                    break;
                }
                let at = rest.char_indices().rev().find(|(_, c)| is_space(*c)).map_or(0, |(i, c)| i + c.len_utf8());
                parts.push(&rest[at..]);
                rest = rest[..at].trim_end_matches(is_space);
            }
            parts.reverse();
        }
        None => {
            let mut rest = s.trim_start_matches(is_space);
            while !rest.is_empty() {
                if parts.len() == max {
                    parts.push(rest);
                    break;
                }
                let at = rest.find(is_space).unwrap_or(rest.len());
                parts.push(&rest[..at]);
                rest = rest[at..].trim_start_matches(is_space);
            }
        }
    }
    list(state, parts)
}

/// str.splitlines of Python.
pub(crate) fn lines(s: &str, keep: bool) -> Vec<&str> {
    let mut parts = Vec::new();
    let mut start = 0;
    let mut it = s.char_indices().peekable();
    while let Some((i, c)) = it.next() {
        let ends =
            matches!(c, '\n' | '\r' | '\u{b}' | '\u{c}' | '\u{1c}'..='\u{1e}' | '\u{85}' | '\u{2028}' | '\u{2029}');
        if !ends {
            continue;
        }
        let mut end = i + c.len_utf8();
        if c == '\r' && matches!(it.peek(), Some((_, '\n'))) {
            it.next();
            end += 1;
        }
        parts.push(&s[start..if keep { end } else { i }]);
        start = end;
    }
    if start < s.len() {
        parts.push(&s[start..]);
    }
    parts
}

pub(crate) fn title(s: &str) -> String {
    let mut out = String::with_capacity(s.len());
    let mut inside = false;
    for c in s.chars() {
        let cased = c.is_lowercase() || c.is_uppercase();
        if !inside {
            out.extend(c.to_uppercase())
        } else {
            out.extend(c.to_lowercase())
        }
        inside = cased;
    }
    out
}

/// The methods that minijinja's own emulation lacks, or has otherwise than Python; the rest are its.
pub(crate) fn string_method(
    state: &State,
    value: &Value,
    s: &str,
    method: &str,
    args: &[Value],
) -> Result<Option<Value>, Error> {
    // A method reads its text as often as it is called.
    state.consume_fuel((s.len() / BYTES_PER_FUEL) as u64)?;
    args.iter().try_for_each(|a| pay(state, a, 0))?;
    Ok(Some(match method {
        "strip" | "lstrip" | "rstrip" => {
            let (chars,): (Option<&str>,) = from_args(args)?;
            let out = strip(s, chars, method != "rstrip", method != "lstrip");
            if out.len() == s.len() {
                value.clone()
            } else {
                Value::from(out)
            }
        }
        "split" | "rsplit" => {
            let (sep, max, kw): (Option<&str>, Option<i64>, Kwargs) = from_args(args)?;
            let sep = if kw.has("sep") { kw.get("sep")? } else { sep };
            let max = if kw.has("maxsplit") { kw.get("maxsplit")? } else { max };
            kw.assert_all_used()?;
            split(state, s, sep, max.unwrap_or(-1), method == "rsplit")?
        }
        "splitlines" => {
            let (keep, kw): (Option<bool>, Kwargs) = from_args(args)?;
            let keep = if kw.has("keepends") { kw.get("keepends")? } else { keep };
            kw.assert_all_used()?;
            list(state, lines(s, keep.unwrap_or(false)))?
        }
        "format" => str_format(state, s, args)?,
        "replace" => {
            let (old, new, count, kw): (&str, &str, Option<i64>, Kwargs) = from_args(args)?;
            let count = if kw.has("count") { kw.get("count")? } else { count };
            kw.assert_all_used()?;
            Value::from(replaced(state, s, old, new, count.unwrap_or(-1))?)
        }
        "title" => {
            let () = from_args(args)?;
            state.consume_fuel((s.len() / 8) as u64)?;
            Value::from(title(s))
        }
        "swapcase" => {
            let () = from_args(args)?;
            let swap = |c: char| {
                let flipped: String =
                    if c.is_uppercase() { c.to_lowercase().collect() } else { c.to_uppercase().collect() };
                flipped
            };
            Value::from(s.chars().map(swap).collect::<String>())
        }
        "casefold" => {
            let () = from_args(args)?;
            Value::from(s.to_lowercase().replace('ß', "ss"))
        }
        "isdecimal" => {
            let () = from_args(args)?;
            Value::from(!s.is_empty() && s.chars().all(|c| c.is_ascii_digit()))
        }
        "istitle" => {
            let () = from_args(args)?;
            Value::from(s.chars().any(|c| c.is_uppercase() || c.is_lowercase()) && title(s) == s)
        }
        "center" | "ljust" | "rjust" => {
            let (width,): (i64,) = from_args(args)?;
            let free = width.saturating_sub(s.chars().count() as i64).max(0);
            state.consume_fuel(free as u64)?;
            let blanks = " ".repeat(free as usize);
            match method {
                "center" => center(state, value, Some(width))?,
                "ljust" => Value::from(format!("{s}{blanks}")),
                _ => Value::from(format!("{blanks}{s}")),
            }
        }
        "zfill" => {
            let (width,): (i64,) = from_args(args)?;
            let free = width.saturating_sub(s.chars().count() as i64).max(0);
            state.consume_fuel(free as u64)?;
            let zeros = "0".repeat(free as usize);
            let sign = if s.starts_with(['+', '-']) { 1 } else { 0 };
            Value::from(format!("{}{zeros}{}", &s[..sign], &s[sign..]))
        }
        "partition" | "rpartition" => {
            let (sep,): (&str,) = from_args(args)?;
            if sep.is_empty() {
                return Err(Error::new(ErrorKind::InvalidOperation, "empty separator"));
            }
            let found = if method == "partition" { s.split_once(sep) } else { s.rsplit_once(sep) };
            let (a, b, c) = match found {
                Some((a, c)) => (a, sep, c),
                None if method == "partition" => (s, "", ""),
                None => ("", "", s),
            };
            Value::from(Tuple::from([Value::from(a), Value::from(b), Value::from(c)]))
        }
        "removeprefix" => {
            let (part,): (&str,) = from_args(args)?;
            Value::from(s.strip_prefix(part).unwrap_or(s))
        }
        "removesuffix" => {
            let (part,): (&str,) = from_args(args)?;
            Value::from(s.strip_suffix(part).unwrap_or(s))
        }
        "index" | "rindex" => {
            let (part,): (&str,) = from_args(args)?;
            let found = if method == "index" { s.find(part) } else { s.rfind(part) };
            match found {
                Some(i) => Value::from(s[..i].chars().count()),
                None => return Err(Error::new(ErrorKind::InvalidOperation, "substring not found")),
            }
        }
        "join" => {
            // str.join takes strings alone, and the characters of a string.
            let (values,): (&Value,) = from_args(args)?;
            let mut out = String::new();
            for (i, item) in values.try_iter()?.checked().enumerate() {
                let item = item?;
                let Some(text) = item.as_str() else {
                    return Err(Error::new(
                        ErrorKind::InvalidOperation,
                        format!("sequence item {i}: expected str instance, {} found", item.kind()),
                    ));
                };
                if i > 0 {
                    out.push_str(s);
                }
                out.push_str(text);
                state.consume_fuel(1 + ((s.len() + text.len()) / BYTES_PER_FUEL) as u64)?;
            }
            Value::from(out)
        }
        _ => return Ok(None),
    }))
}

pub(crate) fn call_method(state: &mut State, value: &Value, method: &str, args: &[Value]) -> Result<Value, Error> {
    if let Some(s) = value.as_str() {
        if let Some(v) = string_method(state, value, s, method, args)? {
            return Ok(v);
        }
    }
    if value.kind() == ValueKind::Seq && method == "count" {
        let (what,): (&Value,) = from_args(args)?;
        let mut n = 0;
        for item in value.try_iter()?.checked() {
            let item = item?;
            state.consume_fuel(1)?;
            pay_both(state, &item, what)?;
            n += (item == *what) as usize;
        }
        return Ok(Value::from(n));
    }
    if value.kind() == ValueKind::Seq && method == "index" {
        let (what,): (&Value,) = from_args(args)?;
        for (i, item) in value.try_iter()?.checked().enumerate() {
            let item = item?;
            state.consume_fuel(1)?;
            pay_both(state, &item, what)?;
            if item == *what {
                return Ok(Value::from(i));
            }
        }
        return Err(Error::new(ErrorKind::InvalidOperation, "the value is not in the list"));
    }
    // Nothing can change a copy.
    if matches!(value.kind(), ValueKind::Seq | ValueKind::Map) && method == "copy" {
        let () = from_args(args)?;
        return Ok(value.clone());
    }
    if value.kind() == ValueKind::Map && method == "get" && args.first().is_some_and(|k| !hashable(k)) {
        return Err(Error::new(ErrorKind::InvalidOperation, "unhashable key"));
    }
    // transformers' sandbox is the immutable one.
    if matches!(value.kind(), ValueKind::Seq | ValueKind::Map)
        && matches!(
            method,
            "append"
                | "clear"
                | "extend"
                | "insert"
                | "pop"
                | "popitem"
                | "remove"
                | "reverse"
                | "setdefault"
                | "sort"
                | "update"
        )
    {
        return Err(Error::new(ErrorKind::InvalidOperation, format!("the sandbox does not allow {method}()")));
    }
    minijinja_contrib::pycompat::unknown_method_callback(state, value, method, args)
}
