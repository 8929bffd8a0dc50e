//! Python's view of values: str, repr and json.dumps, generators, whole numbers without bound.

use minijinja::value::{Enumerator, Kwargs, Object, ObjectRepr, Rest, Value, ValueKind};
use minijinja::{Error, ErrorKind, State};
use std::fmt::Write as _;
use std::sync::{Arc, Mutex};

/// How deep JSON may be nested, and lists and maps that a template makes.
pub(crate) const MAX_DEPTH: usize = 200;

/// One fuel pays for this many bytes that are written or read; as minijinja counts.
pub(crate) const BYTES_PER_FUEL: usize = 64;

/// A whole number of more than 128 bits. Python's have no bound; a template can only write it out.
#[derive(Debug)]
pub(crate) struct BigInt(pub(crate) String);

impl Object for BigInt {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Plain
    }
    fn render(self: &Arc<Self>, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

/// A method that is not called. In Python `x.items` of a dict is its method, whatever the dict holds.
#[derive(Debug)]
pub(crate) struct Method;

impl Object for Method {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Plain
    }
}

/// What Python's select, map and the like return: it can be gone over once, is true even when there is
/// nothing in it, and has neither length nor items.
#[derive(Debug)]
pub(crate) struct Generator(Mutex<Vec<Value>>);

impl Generator {
    pub(crate) fn new(items: impl IntoIterator<Item = Value>) -> Value {
        Value::from_object(Generator(Mutex::new(items.into_iter().collect())))
    }

    /// Looks at the items without using them up.
    pub(crate) fn peek<T>(&self, f: impl FnOnce(&[Value]) -> T) -> T {
        match self.0.lock() {
            Ok(items) => f(&items),
            Err(_) => f(&[]),
        }
    }

    pub(crate) fn take(&self) -> Vec<Value> {
        self.0.lock().map(|mut items| std::mem::take(&mut *items)).unwrap_or_default()
    }
}

impl Object for Generator {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Iterable
    }
    fn enumerate(self: &Arc<Self>) -> Enumerator {
        Enumerator::Iter(Box::new(self.take().into_iter()))
    }
    fn enumerator_len(self: &Arc<Self>) -> Option<usize> {
        None
    }
    fn is_true(self: &Arc<Self>) -> bool {
        true
    }
}

/// Text that grows while values are written into it, paid for from the fuel of a rendering. Values can
/// share their parts, so that a small one may have a text without end.
pub(crate) struct Sink<'a, 't, 'e> {
    pub(crate) out: String,
    state: &'a State<'t, 'e>,
    paid: usize,
}

impl<'a, 't, 'e> Sink<'a, 't, 'e> {
    pub(crate) fn new(state: &'a State<'t, 'e>) -> Self {
        Sink { out: String::new(), state, paid: 0 }
    }

    /// Pays for what was written since, and one fuel for the value that is to come.
    pub(crate) fn pay(&mut self) -> Result<(), Error> {
        let n = (self.out.len() - self.paid) / BYTES_PER_FUEL;
        self.paid += n * BYTES_PER_FUEL;
        self.state.consume_fuel(n as u64 + 1)
    }
}

/// The source of an error that is a limit of ours.
#[derive(Debug)]
pub(crate) struct Limit;

impl std::fmt::Display for Limit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("limit reached")
    }
}
impl std::error::Error for Limit {}

pub(crate) fn too_deep() -> Error {
    Error::new(ErrorKind::InvalidOperation, format!("a value is nested deeper than {MAX_DEPTH}")).with_source(Limit)
}

/// repr(float) of Python.
pub(crate) fn py_float(f: f64) -> String {
    if f.is_nan() {
        return "nan".into();
    }
    if f.is_infinite() {
        return if f > 0.0 { "inf".into() } else { "-inf".into() };
    }
    let s = format!("{f:e}"); // the shortest digits: d.ddde-x
    let (digits, exp) = s.split_once('e').unwrap_or((&s, "0"));
    let exp: i32 = exp.parse().unwrap_or(0);
    if (-4..16).contains(&exp) {
        let mut r = format!("{f}");
        if !r.contains('.') {
            r.push_str(".0");
        }
        r
    } else {
        format!("{digits}e{}{:02}", if exp < 0 { '-' } else { '+' }, exp.abs())
    }
}

pub(crate) fn is_float(v: &Value) -> bool {
    v.kind() == ValueKind::Number && !v.is_integer()
}

/// Whether Python's str.isprintable holds for c. Rust escapes by the same categories, and combining
/// marks besides when they begin a text.
pub(crate) fn printable(c: char) -> bool {
    if c.is_ascii() {
        return (' '..='~').contains(&c);
    }
    let mut text = [0u8; 8];
    text[0] = b'a';
    let n = 1 + c.encode_utf8(&mut text[1..]).len();
    match std::str::from_utf8(&text[..n]) {
        Ok(s) => s.escape_debug().nth(1) != Some('\\'),
        Err(_) => false,
    }
}

/// repr(str) of Python.
pub(crate) fn py_repr_str(out: &mut String, s: &str) {
    let quote = if s.contains('\'') && !s.contains('"') { '"' } else { '\'' };
    out.push(quote);
    for c in s.chars() {
        match c {
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            c if c == quote => {
                out.push('\\');
                out.push(c)
            }
            c if printable(c) => out.push(c),
            c => {
                let n = c as u32;
                let _ = match n {
                    0..=0xff => write!(out, "\\x{n:02x}"),
                    0x100..=0xffff => write!(out, "\\u{n:04x}"),
                    _ => write!(out, "\\U{n:08x}"),
                };
            }
        }
    }
    out.push(quote);
}

/// str(v) of Python, or repr(v).
pub(crate) fn py_str(sink: &mut Sink, v: &Value, repr: bool, depth: usize) -> Result<(), Error> {
    sink.pay()?;
    match v.kind() {
        ValueKind::Undefined => {
            if repr {
                sink.out.push_str("Undefined")
            }
        }
        ValueKind::None => sink.out.push_str("None"),
        ValueKind::Bool => sink.out.push_str(if v.is_true() { "True" } else { "False" }),
        ValueKind::Number if is_float(v) => sink.out.push_str(&py_float(f64::try_from(v.clone())?)),
        ValueKind::String => {
            let s = v.as_str().unwrap_or_default();
            if repr {
                py_repr_str(&mut sink.out, s)
            } else {
                sink.out.push_str(s)
            }
        }
        ValueKind::Iterable if v.downcast_object_ref::<Generator>().is_some() => {
            return Err(Error::new(ErrorKind::InvalidOperation, "a generator has no text"));
        }
        ValueKind::Plain if v.downcast_object_ref::<Method>().is_some() => {
            return Err(Error::new(ErrorKind::InvalidOperation, "a method has no text"));
        }
        ValueKind::Seq | ValueKind::Iterable => {
            if depth >= MAX_DEPTH {
                return Err(too_deep());
            }
            let tuple = v.is_tuple();
            sink.out.push(if tuple { '(' } else { '[' });
            let mut n = 0;
            for item in v.try_iter()?.checked() {
                if n > 0 {
                    sink.out.push_str(", ")
                }
                n += 1;
                py_str(sink, &item?, true, depth + 1)?;
            }
            if tuple && n == 1 {
                sink.out.push(',')
            }
            sink.out.push(if tuple { ')' } else { ']' });
        }
        ValueKind::Map => {
            if depth >= MAX_DEPTH {
                return Err(too_deep());
            }
            sink.out.push('{');
            for (i, k) in v.try_iter()?.checked().enumerate() {
                let k = k?;
                if i > 0 {
                    sink.out.push_str(", ")
                }
                py_str(sink, &k, true, depth + 1)?;
                sink.out.push_str(": ");
                py_str(sink, &v.get_item(&k)?, true, depth + 1)?;
            }
            sink.out.push('}');
        }
        _ => {
            let _ = write!(sink.out, "{v}");
        }
    }
    Ok(())
}

pub(crate) fn to_py_str(state: &State, v: &Value) -> Result<String, Error> {
    let mut sink = Sink::new(state);
    py_str(&mut sink, v, false, 0)?;
    sink.pay()?;
    Ok(sink.out)
}

pub(crate) fn json_str(out: &mut String, s: &str, ascii: bool) {
    out.push('"');
    for c in s.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            c if (c as u32) < 0x20 => {
                let _ = write!(out, "\\u{:04x}", c as u32);
            }
            c if ascii && (c as u32) >= 0x7f => {
                let mut units = [0u16; 2];
                for u in c.encode_utf16(&mut units) {
                    let _ = write!(out, "\\u{u:04x}");
                }
            }
            c => out.push(c),
        }
    }
    out.push('"');
}

/// The arguments of json.dumps.
pub(crate) struct Dumps {
    ascii: bool,
    indent: Option<String>,
    item: String,
    key: String,
    sort: bool,
}

impl Dumps {
    fn newline(&self, out: &mut String, depth: usize) {
        if let Some(indent) = &self.indent {
            out.push('\n');
            for _ in 0..depth {
                out.push_str(indent)
            }
        }
    }

    fn scalar(&self, out: &mut String, v: &Value) -> Result<bool, Error> {
        match v.kind() {
            ValueKind::None => out.push_str("null"),
            ValueKind::Bool => out.push_str(if v.is_true() { "true" } else { "false" }),
            ValueKind::Number if is_float(v) => {
                let f = f64::try_from(v.clone())?;
                match f {
                    f if f.is_nan() => out.push_str("NaN"),
                    f if f.is_infinite() => out.push_str(if f > 0.0 { "Infinity" } else { "-Infinity" }),
                    f => out.push_str(&py_float(f)),
                }
            }
            ValueKind::Number => {
                let _ = write!(out, "{v}");
            }
            ValueKind::Plain if v.downcast_object_ref::<BigInt>().is_some() => {
                let _ = write!(out, "{v}");
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    fn value(&self, sink: &mut Sink, v: &Value, depth: usize) -> Result<(), Error> {
        sink.pay()?;
        if self.scalar(&mut sink.out, v)? {
            return Ok(());
        }
        if depth >= MAX_DEPTH {
            return Err(too_deep());
        }
        match v.kind() {
            ValueKind::String => json_str(&mut sink.out, v.as_str().unwrap_or_default(), self.ascii),
            ValueKind::Seq => {
                let mut n = 0;
                sink.out.push('[');
                for item in v.try_iter()?.checked() {
                    if n > 0 {
                        sink.out.push_str(&self.item)
                    }
                    n += 1;
                    self.newline(&mut sink.out, depth + 1);
                    self.value(sink, &item?, depth + 1)?;
                }
                if n > 0 {
                    self.newline(&mut sink.out, depth)
                }
                sink.out.push(']');
            }
            ValueKind::Map => {
                let mut keys = v.try_iter()?.checked().collect::<Result<Vec<Value>, Error>>()?;
                if self.sort {
                    keys.sort();
                }
                sink.out.push('{');
                for (i, k) in keys.iter().enumerate() {
                    if i > 0 {
                        sink.out.push_str(&self.item)
                    }
                    self.newline(&mut sink.out, depth + 1);
                    match k.as_str() {
                        Some(k) => json_str(&mut sink.out, k, self.ascii),
                        None => {
                            let mut text = String::new();
                            if !self.scalar(&mut text, k)? {
                                return Err(Error::new(
                                    ErrorKind::InvalidOperation,
                                    "keys must be str, int, float, bool or None",
                                ));
                            }
                            json_str(&mut sink.out, &text, self.ascii);
                        }
                    }
                    sink.out.push_str(&self.key);
                    self.value(sink, &v.get_item(k)?, depth + 1)?;
                }
                if !keys.is_empty() {
                    self.newline(&mut sink.out, depth)
                }
                sink.out.push('}');
            }
            kind => {
                return Err(Error::new(
                    ErrorKind::InvalidOperation,
                    format!("Object of type {kind} is not JSON serializable"),
                ))
            }
        }
        Ok(())
    }
}

/// The filter tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False).
pub(crate) fn tojson(state: &State, v: &Value, args: Rest<Value>, kw: Kwargs) -> Result<Value, Error> {
    let pick = |i: usize, name: &str| -> Result<Value, Error> {
        if let Some(v) = args.get(i) {
            return Ok(v.clone());
        }
        Ok(kw.get::<Option<Value>>(name)?.unwrap_or(Value::UNDEFINED))
    };
    let ascii = pick(0, "ensure_ascii")?.is_true();
    let indent = pick(1, "indent")?;
    let separators = pick(2, "separators")?;
    let sort = pick(3, "sort_keys")?.is_true();
    kw.assert_all_used()?;
    if args.len() > 4 {
        return Err(Error::from(ErrorKind::TooManyArguments));
    }
    let indent = if indent.is_none() || indent.is_undefined() {
        None
    } else if let Some(s) = indent.as_str() {
        Some(s.to_string())
    } else if indent.kind() == ValueKind::Bool {
        Some(if indent.is_true() { " ".into() } else { "".into() })
    } else {
        Some(" ".repeat(i64::try_from(indent)?.clamp(0, 1000) as usize))
    };
    let (item, key) = if separators.is_none() || separators.is_undefined() {
        (if indent.is_some() { "," } else { ", " }.to_string(), ": ".to_string())
    } else {
        let part = |i| -> Result<String, Error> {
            let v = separators.get_item_by_index(i)?;
            v.as_str()
                .map(str::to_string)
                .ok_or_else(|| Error::new(ErrorKind::InvalidOperation, "separators must be strings"))
        };
        (part(0)?, part(1)?)
    };
    let mut sink = Sink::new(state);
    Dumps { ascii, indent, item, key, sort }.value(&mut sink, v, 0)?;
    sink.pay()?;
    Ok(Value::from(sink.out))
}
