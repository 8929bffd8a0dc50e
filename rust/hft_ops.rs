//! What takes the place of minijinja's instructions, so that operators do as Python's do.
//!
//! They also pay for what minijinja does not: comparing values takes as long as they are large, and since
//! values can share parts, a value that took little work to make can be as large as 2 to the power of that;
//! and a value that is nested deep enough overflows the stack when it is dropped.

use crate::hft_python::{py_str, too_deep, Generator, Method, Sink, BYTES_PER_FUEL, MAX_DEPTH};
use crate::hft_text::format;
use minijinja::value::{Kwargs, ObjectRepr, Rest, Tuple, Value, ValueKind};
use minijinja::{Error, ErrorKind, State};

/// Pays for going through a value, and refuses one that is nested too deep.
pub(crate) fn pay(state: &State, v: &Value, depth: usize) -> Result<(), Error> {
    if let Some(s) = v.as_str() {
        return state.consume_fuel((s.len() / BYTES_PER_FUEL) as u64);
    }
    let Some(o) = v.as_object() else { return Ok(()) };
    if depth > MAX_DEPTH {
        return Err(too_deep());
    }
    if let Some(g) = v.downcast_object_ref::<Generator>() {
        return g.peek(|items| {
            items.iter().try_for_each(|v| {
                state.consume_fuel(1)?;
                pay(state, v, depth + 1)
            })
        });
    }
    match o.repr() {
        ObjectRepr::Map => {
            for (k, v) in o.try_iter_pairs().into_iter().flatten() {
                state.consume_fuel(1)?;
                pay(state, &k, depth + 1)?;
                pay(state, &v, depth + 1)?;
            }
        }
        ObjectRepr::Seq | ObjectRepr::Iterable => {
            for v in o.try_iter().into_iter().flatten() {
                state.consume_fuel(1)?;
                pay(state, &v, depth + 1)?;
            }
        }
        _ => {}
    }
    Ok(())
}

/// Whether a value is a namespace or a loop. Others cannot hold these: a chain of them would escape the
/// check of its depth.
pub(crate) fn is_scope(v: &Value) -> bool {
    v.as_object().is_some_and(|o| {
        let name = o.type_name();
        name.starts_with("minijinja::") && (name.ends_with("::Namespace") || name.ends_with("::Loop"))
    })
}

pub(crate) fn no_scope(v: &Value) -> Result<(), Error> {
    if is_scope(v) {
        return Err(Error::new(ErrorKind::InvalidOperation, "a namespace or loop cannot be stored in another value"));
    }
    Ok(())
}

/// A list, tuple or map that has been made of others.
pub(crate) fn built(state: &State, v: &Value) -> Result<Value, Error> {
    if v.downcast_object_ref::<Generator>().is_some() {
        pay(state, v, 0)?;
    } else if let Some(o) = v.as_object() {
        let flat = |v: Value| -> Result<bool, Error> {
            no_scope(&v)?;
            Ok(v.as_object().is_none())
        };
        let mut all = true;
        match o.repr() {
            ObjectRepr::Map => {
                for (_, v) in o.try_iter_pairs().into_iter().flatten() {
                    all &= flat(v)?;
                }
            }
            _ => {
                for v in o.try_iter().into_iter().flatten() {
                    all &= flat(v)?;
                }
            }
        }
        if !all {
            pay(state, v, 0)?;
        }
    }
    Ok(v.clone())
}

/// A value about to be stored in a namespace.
pub(crate) fn stored(v: &Value) -> Result<Value, Error> {
    no_scope(v)?;
    Ok(v.clone())
}

/// A sum or a product: minijinja makes lists that refer to their parts.
pub(crate) fn plain(v: &Value) -> Result<Value, Error> {
    match v.as_object() {
        Some(o)
            if matches!(o.repr(), ObjectRepr::Seq | ObjectRepr::Iterable) && !o.is::<Vec<Value>>() && !v.is_tuple() =>
        {
            v.try_iter()?.checked().collect::<Result<Vec<Value>, Error>>().map(Value::from)
        }
        _ => Ok(v.clone()),
    }
}

/// What can be a key: a list cannot, nor can a map.
pub(crate) fn hashable(v: &Value) -> bool {
    match v.as_object() {
        None => true,
        Some(o) if v.is_tuple() => o.try_iter().into_iter().flatten().all(|v| v.as_object().is_none()),
        Some(_) => false,
    }
}

/// The literal of a map, from its keys and values in turn.
pub(crate) fn mapping(state: &State, v: &Value) -> Result<Value, Error> {
    let items: Vec<Value> = v.try_iter()?.collect();
    let mut pairs = Vec::with_capacity(items.len() / 2);
    for kv in items.chunks_exact(2) {
        if !hashable(&kv[0]) {
            return Err(Error::new(ErrorKind::InvalidOperation, format!("unhashable type: {}", kv[0].kind())));
        }
        pairs.push((kv[0].clone(), kv[1].clone()));
    }
    built(state, &Value::from_pairs(pairs))
}

/// The methods that Python's values have, which jinja2 finds before their items.
const DICT_METHODS: [&str; 11] =
    ["clear", "copy", "fromkeys", "get", "items", "keys", "pop", "popitem", "setdefault", "update", "values"];
const LIST_METHODS: [&str; 11] =
    ["append", "clear", "copy", "count", "extend", "index", "insert", "pop", "remove", "reverse", "sort"];
const STR_METHODS: [&str; 47] = [
    "capitalize",
    "casefold",
    "center",
    "count",
    "encode",
    "endswith",
    "expandtabs",
    "find",
    "format",
    "format_map",
    "index",
    "isalnum",
    "isalpha",
    "isascii",
    "isdecimal",
    "isdigit",
    "isidentifier",
    "islower",
    "isnumeric",
    "isprintable",
    "isspace",
    "istitle",
    "isupper",
    "join",
    "ljust",
    "lower",
    "lstrip",
    "maketrans",
    "partition",
    "removeprefix",
    "removesuffix",
    "replace",
    "rfind",
    "rindex",
    "rjust",
    "rpartition",
    "rsplit",
    "rstrip",
    "split",
    "splitlines",
    "startswith",
    "strip",
    "swapcase",
    "title",
    "translate",
    "upper",
    "zfill",
];

pub(crate) fn names_method(name: &str) -> bool {
    DICT_METHODS.contains(&name) || LIST_METHODS.contains(&name) || STR_METHODS.contains(&name)
}

pub(crate) fn has_method(v: &Value, name: &str) -> bool {
    match v.kind() {
        ValueKind::Map => !is_scope(v) && DICT_METHODS.contains(&name),
        ValueKind::Seq => !v.is_tuple() && LIST_METHODS.contains(&name),
        ValueKind::String => STR_METHODS.contains(&name),
        _ => false,
    }
}

/// a.b, where b may be a method.
pub(crate) fn attribute(a: &Value, b: &str) -> Result<Value, Error> {
    if has_method(a, b) {
        return Ok(Value::from_object(Method));
    }
    a.get_attr(b)
}

/// a[b].
pub(crate) fn item(state: &State, a: &Value, b: &Value) -> Result<Value, Error> {
    if a.is_undefined() {
        return Err(Error::from(ErrorKind::UndefinedError));
    }
    if let (Some(s), Some(i)) = (a.as_str(), b.as_i64()) {
        state.consume_fuel((s.len() / BYTES_PER_FUEL) as u64)?;
        let mut chars = s.chars();
        let c = if i >= 0 { chars.nth(i as usize) } else { chars.nth_back((i + 1).unsigned_abs() as usize) };
        return Ok(c.map(Value::from).unwrap_or(Value::UNDEFINED));
    }
    if !hashable(b) || a.downcast_object_ref::<Generator>().is_some() {
        return Ok(Value::UNDEFINED);
    }
    if let (Some(o), Some(_)) = (a.as_object(), b.as_i64()) {
        if o.repr() == ObjectRepr::Iterable {
            return Ok(Value::UNDEFINED); // as of dict.items()
        }
    }
    let found = a.get_item(b)?;
    // jinja2 looks for an attribute if there is no item.
    if found.is_undefined() && b.as_str().is_some_and(|b| has_method(a, b)) {
        return Ok(Value::from_object(Method));
    }
    Ok(found)
}

/// a[start:stop:step].
pub(crate) fn slice(state: &State, a: &Value, start: &Value, stop: &Value, step: &Value) -> Result<Value, Error> {
    let bound = |v: &Value| -> Result<Option<i64>, Error> {
        if v.is_none() {
            return Ok(None);
        }
        v.as_i64()
            .filter(|_| v.is_integer() || v.kind() == ValueKind::Bool)
            .map(Some)
            .ok_or_else(|| Error::new(ErrorKind::InvalidOperation, "slice indices must be integers or None"))
    };
    if a.is_undefined() {
        return Err(Error::from(ErrorKind::UndefinedError));
    }
    let (start, stop, step) = (bound(start)?, bound(stop)?, bound(step)?.unwrap_or(1));
    if step == 0 {
        return Err(Error::new(ErrorKind::InvalidOperation, "slice step cannot be zero"));
    }
    // The positions, as slice.indices() of Python gives them.
    let positions = |len: usize| -> Vec<usize> {
        let len = len as i64;
        let (low, high) = if step > 0 { (0, len) } else { (-1, len - 1) };
        let clip = |v: i64| if v < 0 { v.saturating_add(len).max(low) } else { v.min(high) };
        let mut at = start.map(clip).unwrap_or(if step > 0 { low } else { high });
        let end = stop.map(clip).unwrap_or(if step > 0 { high } else { low });
        let mut out = Vec::new();
        while if step > 0 { at < end } else { at > end } {
            out.push(at as usize);
            at = at.saturating_add(step);
        }
        out
    };
    if let Some(s) = a.as_str() {
        state.consume_fuel((s.len() / BYTES_PER_FUEL) as u64)?;
        if s.is_ascii() && step == 1 {
            let at = |v: Option<i64>, default: usize| match v {
                Some(v) if v < 0 => (s.len() as i64).saturating_add(v).max(0) as usize,
                Some(v) => (v as usize).min(s.len()),
                None => default,
            };
            return Ok(Value::from(s.get(at(start, 0)..at(stop, s.len())).unwrap_or("")));
        }
        state.consume_fuel((s.len() / 8) as u64)?;
        let chars: Vec<char> = s.chars().collect();
        return Ok(Value::from(positions(chars.len()).into_iter().map(|i| chars[i]).collect::<String>()));
    }
    if a.kind() != ValueKind::Seq {
        return Ok(Value::UNDEFINED);
    }
    let items: Vec<Value> = a.try_iter()?.checked().collect::<Result<_, _>>()?;
    state.consume_fuel(items.len() as u64)?;
    let part = positions(items.len()).into_iter().map(|i| items[i].clone()).collect::<Vec<_>>();
    Ok(if a.is_tuple() { Value::from(Tuple::from(part)) } else { Value::from(part) })
}

/// What a loop goes over. None and numbers cannot be gone over, strings by their characters.
pub(crate) fn iterated(state: &State, v: &Value) -> Result<Value, Error> {
    match v.kind() {
        ValueKind::None | ValueKind::Bool | ValueKind::Number => {
            Err(Error::new(ErrorKind::InvalidOperation, format!("{} is not iterable", v.kind())))
        }
        // minijinja does not know how many characters there are, and loop.last would be wrong.
        ValueKind::String => {
            let s = v.as_str().unwrap_or_default();
            state.consume_fuel(s.len() as u64)?;
            Ok(Value::from(s.chars().map(Value::from).collect::<Vec<Value>>()))
        }
        ValueKind::Iterable => match v.downcast_object_ref::<Generator>() {
            Some(g) => Ok(Value::from(g.take())), // so that loop.length is known, as in jinja2
            None => Ok(v.clone()),
        },
        _ => Ok(v.clone()),
    }
}

/// Pays for comparing two values.
pub(crate) fn pay_both(state: &State, a: &Value, b: &Value) -> Result<(), Error> {
    match (a.as_str(), b.as_str()) {
        (Some(a), Some(b)) if a.len() == b.len() => state.consume_fuel((a.len() / BYTES_PER_FUEL) as u64),
        _ if a.as_object().is_some() && b.as_object().is_some() => {
            pay(state, a, 0)?;
            pay(state, b, 0)
        }
        _ => Ok(()),
    }
}

/// A comparison; as the debug form of minijinja's own has it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum CompareOp {
    Eq,
    Ne,
    Lt,
    Lte,
    Gt,
    Gte,
    In,
    NotIn,
}

pub(crate) fn compare(state: &State, op: &CompareOp, a: &Value, b: &Value) -> Result<bool, Error> {
    match op {
        CompareOp::Eq | CompareOp::Ne => {
            pay_both(state, a, b)?;
            return Ok((a == b) == matches!(op, CompareOp::Eq));
        }
        CompareOp::In | CompareOp::NotIn => return Ok(contains(state, b, a)? == matches!(op, CompareOp::In)),
        _ => {}
    }
    let class = |v: &Value| match v.kind() {
        ValueKind::Number | ValueKind::Bool => 1,
        ValueKind::String => 2,
        ValueKind::Seq if v.is_tuple() => 3,
        ValueKind::Seq => 4,
        _ => 0,
    };
    if a.is_undefined() || b.is_undefined() {
        return Err(Error::from(ErrorKind::UndefinedError));
    }
    if class(a) == 0 || class(a) != class(b) {
        return Err(Error::new(ErrorKind::InvalidOperation, format!("cannot order {} and {}", a.kind(), b.kind())));
    }
    pay_both(state, a, b)?;
    Ok(match op {
        CompareOp::Lt => a < b,
        CompareOp::Lte => a <= b,
        CompareOp::Gt => a > b,
        _ => a >= b,
    })
}

/// v in container.
pub(crate) fn contains(state: &State, container: &Value, v: &Value) -> Result<bool, Error> {
    if container.is_undefined() {
        return Ok(false);
    }
    if let Some(s) = container.as_str() {
        let Some(part) = v.as_str() else {
            return Err(Error::new(
                ErrorKind::InvalidOperation,
                format!("'in <string>' requires string as left operand, not {}", v.kind()),
            ));
        };
        state.consume_fuel(((s.len() + part.len()) / BYTES_PER_FUEL) as u64)?;
        return Ok(s.contains(part));
    }
    let Some(o) = container.as_object() else {
        return Err(Error::new(ErrorKind::InvalidOperation, format!("{} is not iterable", container.kind())));
    };
    match o.repr() {
        ObjectRepr::Map if !hashable(v) => {
            Err(Error::new(ErrorKind::InvalidOperation, format!("unhashable type: {}", v.kind())))
        }
        ObjectRepr::Map => Ok(o.get_value(v).is_some()),
        ObjectRepr::Plain => Err(Error::new(ErrorKind::InvalidOperation, "not iterable")),
        _ => {
            for item in container.try_iter()?.checked() {
                let item = item?;
                state.consume_fuel(1)?;
                pay_both(state, &item, v)?;
                if item == *v {
                    return Ok(true);
                }
            }
            Ok(false)
        }
    }
}

/// The operator %: of a text, the filter format.
pub(crate) fn remainder(state: &State, a: &Value, b: &Value) -> Result<Value, Error> {
    if a.as_str().is_some() {
        let args = if b.is_tuple() {
            b.try_iter()?.checked().collect::<Result<Vec<Value>, Error>>()?
        } else {
            vec![b.clone()]
        };
        return format(state, a, Rest(args), Kwargs::from_iter(std::iter::empty::<(String, Value)>()));
    }
    let zero = || Error::new(ErrorKind::InvalidOperation, "modulo by zero");
    if is_whole(a) && is_whole(b) {
        let (a, b) = (i128::try_from(a.clone())?, i128::try_from(b.clone())?);
        let r = a.checked_rem(b).ok_or_else(zero)?;
        return Ok(Value::from(if r != 0 && (r < 0) != (b < 0) { r + b } else { r }));
    }
    if !matches!((a.kind(), b.kind()), (ValueKind::Number | ValueKind::Bool, ValueKind::Number | ValueKind::Bool)) {
        return Err(Error::new(ErrorKind::InvalidOperation, format!("no % of {} and {}", a.kind(), b.kind())));
    }
    let (a, b) = (f64::try_from(a.clone())?, f64::try_from(b.clone())?);
    if b == 0.0 {
        return Err(zero());
    }
    let r = a % b;
    Ok(Value::from(if r != 0.0 && (r < 0.0) != (b < 0.0) { r + b } else { r }))
}

fn is_whole(v: &Value) -> bool {
    v.kind() == ValueKind::Bool || v.kind() == ValueKind::Number && v.is_integer()
}

/// The operator ~, with Python's str.
pub(crate) fn concat(state: &State, a: &Value, b: &Value) -> Result<Value, Error> {
    let mut sink = Sink::new(state);
    if let (Some(a), Some(b)) = (a.as_str(), b.as_str()) {
        state.consume_fuel(((a.len() + b.len()) / BYTES_PER_FUEL) as u64)?;
        sink.out.reserve_exact(a.len() + b.len());
        sink.out.push_str(a);
        sink.out.push_str(b);
    } else {
        py_str(&mut sink, a, false, 0)?;
        py_str(&mut sink, b, false, 0)?;
        sink.pay()?;
    }
    Ok(Value::from(sink.out))
}

/// Before an addition: what is added to a text marked as safe is escaped as HTML. The result is
/// unpacked, so the second operand comes first.
pub(crate) fn escaped(state: &State, a: &Value, b: &Value) -> Result<Value, Error> {
    let (mut a, mut b) = (a.clone(), b.clone());
    if let (Some(x), Some(y), true) = (a.as_str(), b.as_str(), a.is_safe() != b.is_safe()) {
        state.consume_fuel(((x.len() + y.len()) / BYTES_PER_FUEL) as u64)?;
        if a.is_safe() {
            b = Value::from_safe_string(html(y));
        } else {
            a = Value::from_safe_string(html(x));
        }
    }
    Ok(Value::from(vec![b, a]))
}

pub(crate) fn html(s: &str) -> String {
    let mut out = String::with_capacity(s.len());
    for c in s.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '\'' => out.push_str("&#39;"),
            '"' => out.push_str("&#34;"),
            c => out.push(c),
        }
    }
    out
}
