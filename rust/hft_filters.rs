//! Filters, tests and functions of jinja2 that minijinja lacks or has otherwise.

use crate::hft_ops::{built, compare, has_method, hashable, html, is_scope, CompareOp};
use crate::hft_python::{py_str, to_py_str, BigInt, Generator, Limit, Method, Sink};
use crate::hft_str::strip;
use minijinja::value::{Kwargs, ObjectRepr, Rest, Tuple, Value, ValueKind};
use minijinja::{Error, ErrorKind, State};
use std::cmp::Ordering;

/// The arguments of a call: by place, or by name.
pub(crate) struct Args {
    places: Vec<Value>,
    names: Kwargs,
}

impl Args {
    pub(crate) fn new(places: Rest<Value>, names: Kwargs, most: usize) -> Result<Args, Error> {
        if places.len() > most {
            return Err(Error::from(ErrorKind::TooManyArguments));
        }
        Ok(Args { places: places.0, names })
    }

    /// The argument of that place or name, if it is given and not none.
    pub(crate) fn get(&self, place: usize, name: &str) -> Result<Option<Value>, Error> {
        let v = match self.places.get(place) {
            Some(v) => Some(v.clone()),
            None => self.names.get::<Option<Value>>(name)?,
        };
        Ok(v.filter(|v| !v.is_none()))
    }

    pub(crate) fn flag(&self, place: usize, name: &str) -> Result<bool, Error> {
        Ok(self.get(place, name)?.is_some_and(|v| v.is_true()))
    }

    pub(crate) fn int(&self, place: usize, name: &str) -> Result<Option<i64>, Error> {
        self.get(place, name)?.map(i64::try_from).transpose()
    }

    pub(crate) fn done(&self) -> Result<(), Error> {
        self.names.assert_all_used()
    }
}

pub(crate) fn string(state: &State, v: &Value) -> Result<Value, Error> {
    if v.kind() == ValueKind::String {
        return Ok(v.clone());
    }
    Ok(Value::from(to_py_str(state, v)?))
}

pub(crate) fn trim(state: &State, v: &Value, chars: Option<&str>) -> Result<Value, Error> {
    match v.as_str() {
        Some(s) => {
            let out = strip(s, chars, true, true);
            Ok(if out.len() == s.len() { v.clone() } else { Value::from(out) })
        }
        None => Ok(Value::from(strip(&to_py_str(state, v)?, chars, true, true))),
    }
}

/// The filter join(value, d="", attribute=None), with Python's str for what is no string.
pub(crate) fn join(
    state: &State,
    v: &Value,
    sep: Option<Value>,
    attribute: Option<Value>,
    kw: Kwargs,
) -> Result<Value, Error> {
    let sep = match if kw.has("d") { kw.get("d")? } else { sep } {
        Some(v) => to_py_str(state, &v)?,
        None => String::new(),
    };
    let attribute = if kw.has("attribute") { kw.get("attribute")? } else { attribute };
    kw.assert_all_used()?;
    let mut sink = Sink::new(state);
    if v.is_undefined() {
        return Ok(Value::from(""));
    }
    if v.is_none() {
        return Err(not_iterable(v));
    }
    for (i, item) in v.try_iter()?.checked().enumerate() {
        if i > 0 {
            sink.out.push_str(&sep);
        }
        let mut item = item?;
        if let Some(path) = &attribute {
            match path.as_str() {
                Some(path) => {
                    for part in path.split('.') {
                        item = match part.parse::<usize>() {
                            Ok(n) => item.get_item_by_index(n)?,
                            Err(_) => item.get_attr(part)?,
                        };
                    }
                }
                None => item = item.get_item(path)?,
            }
        }
        py_str(&mut sink, &item, false, 0)?;
    }
    sink.pay()?;
    Ok(Value::from(sink.out))
}

/// jinja2: None, numbers and booleans are not iterable, undefined is.
pub(crate) fn is_iterable(v: &Value) -> bool {
    !matches!(v.kind(), ValueKind::None | ValueKind::Number | ValueKind::Bool)
        && (v.is_undefined() || v.try_iter().is_ok())
}

pub(crate) fn is_number(v: &Value) -> bool {
    matches!(v.kind(), ValueKind::Number | ValueKind::Bool) || v.downcast_object_ref::<BigInt>().is_some()
}

pub(crate) fn is_integer(v: &Value) -> bool {
    v.kind() == ValueKind::Number && v.is_integer() || v.downcast_object_ref::<BigInt>().is_some()
}

/// A template called raise_exception.
#[derive(Debug)]
pub(crate) struct Raised(pub(crate) String);

impl std::fmt::Display for Raised {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}
impl std::error::Error for Raised {}

pub(crate) fn raise_exception(state: &State, message: &Value) -> Result<Value, Error> {
    let message = to_py_str(state, message)?;
    Err(Error::new(ErrorKind::InvalidOperation, message.clone()).with_source(Raised(message)))
}

/// jinja2: whatever has a length and items. So are texts and maps, and even what is undefined.
pub(crate) fn is_sequence(v: &Value) -> bool {
    matches!(v.kind(), ValueKind::String | ValueKind::Map | ValueKind::Seq | ValueKind::Undefined)
}

/// The function range(stop) or range(start, stop, step), as a list. The sandbox of jinja2 has the same limit.
pub(crate) fn range(state: &State, a: i64, b: Option<i64>, step: Option<i64>) -> Result<Value, Error> {
    const MOST: i128 = 100_000;
    let (start, stop, step) = (b.map_or(0, |_| a), b.unwrap_or(a), step.unwrap_or(1));
    if step == 0 {
        return Err(Error::new(ErrorKind::InvalidOperation, "range() arg 3 must not be zero"));
    }
    let distance = if step > 0 { stop as i128 - start as i128 } else { start as i128 - stop as i128 };
    let count = (distance.max(0) + step.unsigned_abs() as i128 - 1) / step.unsigned_abs() as i128;
    if count > MOST {
        return Err(Error::new(ErrorKind::InvalidOperation, format!("a range of more than {MOST}")).with_source(Limit));
    }
    state.consume_fuel(1 + count as u64 / 4)?;
    Ok(Value::from((0..count as i64).map(|i| Value::from(start + i * step)).collect::<Vec<Value>>()))
}

/// The test sameas.
pub(crate) fn is_sameas(a: &Value, b: &Value) -> Result<bool, Error> {
    if a.as_object().is_some() && b.as_object().is_some() {
        return Err(Error::new(ErrorKind::InvalidOperation, "sameas is not known for lists and maps"));
    }
    Ok(a.kind() == b.kind() && a.is_integer() == b.is_integer() && a == b)
}

/// The filter list(v).
pub(crate) fn list(state: &State, v: &Value) -> Result<Value, Error> {
    match v.kind() {
        ValueKind::Undefined => Ok(Value::from(Vec::<Value>::new())),
        ValueKind::None | ValueKind::Bool | ValueKind::Number => Err(not_iterable(v)),
        _ => {
            let mut out = Vec::new();
            for item in v.try_iter()?.checked() {
                state.consume_fuel(1)?;
                out.push(item?);
            }
            Ok(Value::from(out))
        }
    }
}

pub(crate) fn not_iterable(v: &Value) -> Error {
    Error::new(ErrorKind::InvalidOperation, format!("{} is not iterable", v.kind()))
}

/// What is to be sorted must be of one kind, if it is compared itself.
pub(crate) fn sortable(state: &State, v: &Value, by_attribute: bool) -> Result<(), Error> {
    if by_attribute || v.downcast_object_ref::<Generator>().is_some() || v.as_object().is_none() {
        return Ok(());
    }
    let mut last: Option<Value> = None;
    for item in v.try_iter()?.checked() {
        let item = item?;
        if let Some(last) = &last {
            compare(state, &CompareOp::Lt, last, &item)?;
        }
        last = Some(item);
    }
    Ok(())
}

/// The filter dictsort(v, case_sensitive=False, by="key", reverse=False).
pub(crate) fn dictsort(state: &State, v: &Value, places: Rest<Value>, names: Kwargs) -> Result<Value, Error> {
    let args = Args::new(places, names, 3)?;
    let case = args.flag(0, "case_sensitive")?;
    let by = args.get(1, "by")?;
    let reverse = args.flag(2, "reverse")?;
    args.done()?;
    let at = match by.as_ref().map(|b| b.as_str()) {
        None | Some(Some("key")) => 0,
        Some(Some("value")) => 1,
        _ => return Err(Error::new(ErrorKind::InvalidOperation, "by must be \"key\" or \"value\"")),
    };
    let Some(o) = v.as_object().filter(|o| o.repr() == ObjectRepr::Map) else {
        return Err(Error::new(ErrorKind::InvalidOperation, format!("{} has no items", v.kind())));
    };
    let mut pairs: Vec<(Value, Value, Value)> = Vec::new();
    for (k, v) in o.try_iter_pairs().into_iter().flatten() {
        let key = if at == 0 { &k } else { &v };
        let key = match key.as_str() {
            Some(s) if !case => Value::from(s.to_lowercase()),
            _ => key.clone(),
        };
        pairs.push((key, k, v));
    }
    let mut failed = None;
    pairs.sort_by(|a, b| {
        // The first comparison that fails counts.
        let mut less = |a: &Value, b: &Value| match compare(state, &CompareOp::Lt, a, b) {
            Ok(less) => less,
            Err(e) => {
                failed.get_or_insert(e);
                false
            }
        };
        let order = match (less(&a.0, &b.0), less(&b.0, &a.0)) {
            (true, _) => Ordering::Less,
            (_, true) => Ordering::Greater,
            _ => Ordering::Equal,
        };
        if reverse {
            order.reverse()
        } else {
            order
        }
    });
    if let Some(e) = failed {
        return Err(e);
    }
    built(state, &Value::from(pairs.into_iter().map(|(_, k, v)| Value::from(Tuple::from([k, v]))).collect::<Vec<_>>()))
}

/// The filter attr(v, name): an attribute, which an item is not.
pub(crate) fn attr(v: &Value, name: &str) -> Result<Value, Error> {
    if has_method(v, name) {
        return Ok(Value::from_object(Method));
    }
    if is_scope(v) {
        return v.get_attr(name);
    }
    Ok(Value::UNDEFINED)
}

/// int() of Python, of a text.
fn parse_int(s: &str, base: u32) -> Option<i128> {
    let s = strip(s, None, true, true);
    let (neg, s) = match s.strip_prefix('-') {
        Some(s) => (true, s),
        None => (false, s.strip_prefix('+').unwrap_or(s)),
    };
    let prefixes: &[&str] = match base {
        16 => &["0x", "0X"],
        8 => &["0o", "0O"],
        2 => &["0b", "0B"],
        _ => &[],
    };
    let digits = prefixes.iter().find_map(|p| s.strip_prefix(p)).unwrap_or(s);
    if digits.starts_with('_') || digits.ends_with('_') || digits.contains("__") || digits.starts_with(['+', '-']) {
        return None;
    }
    let n = i128::from_str_radix(&digits.replace('_', ""), base).ok()?;
    Some(if neg { -n } else { n })
}

/// float() of Python, of a text.
fn parse_float(s: &str) -> Option<f64> {
    let s = strip(s, None, true, true);
    let known = s.bytes().all(|c| c.is_ascii_digit() || b"+-.eE".contains(&c));
    let word = s.trim_start_matches(['+', '-']).to_ascii_lowercase();
    if s.is_empty() || (!known && !matches!(word.as_str(), "inf" | "infinity" | "nan")) {
        return None;
    }
    s.parse().ok()
}

/// The filter int(v, default=0, base=10).
pub(crate) fn int(v: &Value, places: Rest<Value>, names: Kwargs) -> Result<Value, Error> {
    let args = Args::new(places, names, 2)?;
    let default = args.get(0, "default")?.unwrap_or(Value::from(0));
    let base = args.int(1, "base")?.unwrap_or(10);
    args.done()?;
    let truncated = |f: f64| if f.is_finite() && f.abs() < 1e38 { Some(Value::from(f.trunc() as i128)) } else { None };
    Ok(match v.kind() {
        ValueKind::Bool => Value::from(v.is_true() as i64),
        ValueKind::Number if v.is_integer() => v.clone(),
        ValueKind::Number => truncated(f64::try_from(v.clone())?).unwrap_or(default),
        ValueKind::String => {
            let s = v.as_str().unwrap_or_default();
            let base = u32::try_from(base).ok().filter(|b| (2..=36).contains(b)).unwrap_or(10);
            match parse_int(s, base) {
                Some(n) => Value::from(n),
                None => parse_float(s).and_then(truncated).unwrap_or(default),
            }
        }
        _ if v.downcast_object_ref::<BigInt>().is_some() => v.clone(),
        ValueKind::Undefined => return Err(Error::from(ErrorKind::UndefinedError)),
        _ => default,
    })
}

/// The filter float(v, default=0.0).
pub(crate) fn float(v: &Value, places: Rest<Value>, names: Kwargs) -> Result<Value, Error> {
    let args = Args::new(places, names, 1)?;
    let default = args.get(0, "default")?.unwrap_or(Value::from(0.0));
    args.done()?;
    Ok(match v.kind() {
        ValueKind::Bool => Value::from(v.is_true() as i64 as f64),
        ValueKind::Number => Value::from(f64::try_from(v.clone())?),
        ValueKind::String => parse_float(v.as_str().unwrap_or_default()).map(Value::from).unwrap_or(default),
        ValueKind::Undefined => return Err(Error::from(ErrorKind::UndefinedError)),
        _ => default,
    })
}

/// The function dict(): of a map or of pairs, and of names.
pub(crate) fn dict(state: &State, places: Rest<Value>, names: Kwargs) -> Result<Value, Error> {
    let mut pairs = Vec::new();
    if places.len() > 1 {
        return Err(Error::from(ErrorKind::TooManyArguments));
    }
    if let Some(v) = places.first() {
        match v.as_object() {
            Some(o) if o.repr() == ObjectRepr::Map => pairs.extend(o.try_iter_pairs().into_iter().flatten()),
            _ => {
                for pair in v.try_iter()?.checked() {
                    let pair = pair?.try_iter()?.checked().collect::<Result<Vec<Value>, Error>>()?;
                    let [k, v] = <[Value; 2]>::try_from(pair)
                        .map_err(|_| Error::new(ErrorKind::InvalidOperation, "dict() takes pairs"))?;
                    if !hashable(&k) {
                        return Err(Error::new(ErrorKind::InvalidOperation, "unhashable key"));
                    }
                    pairs.push((k, v));
                }
            }
        }
    }
    state.consume_fuel(pairs.len() as u64)?;
    for name in names.args() {
        pairs.push((Value::from(name), names.get::<Value>(name)?));
    }
    built(state, &Value::from_pairs(pairs))
}

/// The filter escape(v).
pub(crate) fn escape(state: &State, v: &Value) -> Result<Value, Error> {
    if v.is_safe() {
        return Ok(v.clone());
    }
    forceescape(state, v)
}

/// The filter forceescape(v).
pub(crate) fn forceescape(state: &State, v: &Value) -> Result<Value, Error> {
    let s = to_py_str(state, v)?;
    state.consume_fuel((s.len() / 8) as u64)?;
    Ok(Value::from_safe_string(html(&s)))
}
