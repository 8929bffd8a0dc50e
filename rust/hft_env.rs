//! The environment that templates have in transformers.

use crate::hft_emulate::{ATTRIBUTE, BUILT, COMPARES, CONCAT, ESCAPED, ITEM, ITERATED, MAPPING, PLAIN};
use crate::hft_emulate::{REMAINDER, SLICE, STORED};
use crate::hft_filters::{attr, dict, dictsort, escape, float, forceescape, int, is_integer, is_iterable, is_number};
use crate::hft_filters::{is_sameas, is_sequence, join, list, raise_exception, range, sortable, string, trim};
use crate::hft_ops::{
    attribute, built, compare, concat, escaped, item, iterated, mapping, pay, plain, remainder, slice,
};
use crate::hft_ops::{stored, CompareOp};
use crate::hft_python::{to_py_str, tojson, Generator};
use crate::hft_str::call_method;
use crate::hft_text::{center, format, indent, replace, striptags, truncate, urlencode, wordcount};
use crate::hft_time::{strftime, NOW};
use minijinja::filters;
use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, Rest, Value, ValueKind};
use minijinja::{Environment, Error, ErrorKind, State};
use std::borrow::Cow;

/// The arguments as a function takes them.
pub(crate) fn with_kwargs(args: Rest<Value>, kw: Kwargs) -> Vec<Value> {
    let mut args = args.0;
    if kw.args().next().is_some() {
        args.push(Value::from(kw));
    }
    args
}

pub(crate) fn syntax() -> SyntaxConfig {
    SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build().unwrap_or_default()
}

pub(crate) fn environment() -> Environment<'static> {
    let mut env = Environment::new();
    env.set_syntax(syntax());
    env.set_auto_escape_callback(|_| minijinja::AutoEscape::None);
    env.set_unknown_method_callback(call_method);
    env.set_formatter(|out, state: &mut State, v| {
        let failed = |_| Error::from(ErrorKind::WriteFailure);
        match v.as_str() {
            Some(s) => out.write_str(s).map_err(failed),
            None => out.write_str(&to_py_str(state, v)?).map_err(failed),
        }
    });
    env.add_filter("tojson", tojson);
    env.add_filter("string", string);
    env.add_filter("trim", trim);
    env.add_filter("join", join);
    env.add_filter("indent", indent);
    env.add_filter("format", format);
    env.add_filter("map", |state: &mut State, v: Value, args| -> Result<Value, Error> {
        let items = Value::from(filters::map(state, v, args)?);
        built(state, &items)?;
        Ok(Generator::new(items.try_iter()?))
    });
    env.add_filter("select", |state: &mut State, v: Value, test: Option<Cow<'_, str>>, args| {
        filters::select(state, v, test, args).map(Generator::new)
    });
    env.add_filter("reject", |state: &mut State, v: Value, test: Option<Cow<'_, str>>, args| {
        filters::reject(state, v, test, args).map(Generator::new)
    });
    env.add_filter(
        "selectattr",
        |state: &mut State, v: Value, attr: Cow<'_, str>, test: Option<Cow<'_, str>>, args| {
            filters::selectattr(state, v, attr, test, args).map(Generator::new)
        },
    );
    env.add_filter(
        "rejectattr",
        |state: &mut State, v: Value, attr: Cow<'_, str>, test: Option<Cow<'_, str>>, args| {
            filters::rejectattr(state, v, attr, test, args).map(Generator::new)
        },
    );
    env.add_filter("unique", |state: &State, v: Value, kw: Kwargs| -> Result<Value, Error> {
        pay(state, &v, 0)?;
        filters::unique(state, v, kw)?.try_iter().map(Generator::new)
    });
    // What goes through all of a value (to compare, to hash, to write it out), or makes one that is nested
    // deeper, pays for that.
    for (name, f) in [
        ("abs", Value::from_function(filters::abs)),
        ("batch", Value::from_function(filters::batch)),
        ("capitalize", Value::from_function(filters::capitalize)),
        ("groupby", Value::from_function(filters::groupby)),
        ("lower", Value::from_function(filters::lower)),
        ("max", Value::from_function(filters::max)),
        ("min", Value::from_function(filters::min)),
        ("round", Value::from_function(filters::round)),
        ("safe", Value::from_function(filters::safe)),
        ("slice", Value::from_function(filters::slice)),
        ("sort", Value::from_function(filters::sort)),
        ("sum", Value::from_function(filters::sum)),
        ("title", Value::from_function(filters::title)),
        ("upper", Value::from_function(filters::upper)),
    ] {
        env.add_filter(name, move |state: &mut State, args: Rest<Value>, kw: Kwargs| -> Result<Value, Error> {
            let args = with_kwargs(args, kw);
            args.iter().try_for_each(|a| pay(state, a, 0))?;
            if let ("sort" | "min" | "max", Some(v)) = (name, args.first()) {
                sortable(state, v, args.len() > 1)?;
            }
            let out = f.call(state, &args)?;
            built(state, &out)
        });
    }
    env.add_filter("replace", replace);
    env.add_filter("attr", attr);
    env.add_filter("center", center);
    env.add_filter("dictsort", dictsort);
    env.add_filter("e", escape);
    env.add_filter("escape", escape);
    env.add_filter("float", float);
    env.add_filter("forceescape", forceescape);
    env.add_filter("int", int);
    env.add_filter("list", list);
    env.add_filter("striptags", striptags);
    env.add_filter("truncate", truncate);
    env.add_filter("urlencode", urlencode);
    env.add_filter("wordcount", wordcount);
    env.add_filter(REMAINDER, remainder);
    env.add_filter(ATTRIBUTE, attribute);
    env.add_filter(BUILT, built);
    env.add_filter(CONCAT, concat);
    env.add_filter(ESCAPED, escaped);
    env.add_filter(ITEM, item);
    env.add_filter(ITERATED, iterated);
    env.add_filter(MAPPING, mapping);
    env.add_filter(PLAIN, plain);
    env.add_filter(SLICE, slice);
    env.add_filter(STORED, stored);
    for (name, chained, op) in COMPARES {
        env.add_filter(name, move |state: &State, a: &Value, b: &Value| compare(state, &op, a, b));
        // The right operand stays on the stack below the result.
        env.add_filter(chained, move |state: &State, a: &Value, b: &Value| -> Result<Value, Error> {
            Ok(Value::from(vec![Value::from(compare(state, &op, a, b)?), b.clone()]))
        });
    }
    let namespace = env.globals().find(|(name, _)| *name == "namespace").map(|(_, f)| f);
    if let Some(f) = namespace {
        env.add_function(
            "namespace",
            move |state: &mut State, args: Rest<Value>, kw: Kwargs| -> Result<Value, Error> {
                let args = with_kwargs(args, kw);
                args.iter().try_for_each(|a| built(state, a).map(|_| ()))?;
                f.call(state, &args)
            },
        );
    }
    env.add_function("dict", dict);
    env.add_function("range", range);
    env.add_function("cycler", minijinja_contrib::globals::cycler);
    env.add_function("joiner", minijinja_contrib::globals::joiner);
    for (name, op) in [
        ("eq", CompareOp::Eq),
        ("equalto", CompareOp::Eq),
        ("==", CompareOp::Eq),
        ("ne", CompareOp::Ne),
        ("!=", CompareOp::Ne),
        ("lt", CompareOp::Lt),
        ("lessthan", CompareOp::Lt),
        ("<", CompareOp::Lt),
        ("le", CompareOp::Lte),
        ("<=", CompareOp::Lte),
        ("gt", CompareOp::Gt),
        ("greaterthan", CompareOp::Gt),
        (">", CompareOp::Gt),
        ("ge", CompareOp::Gte),
        (">=", CompareOp::Gte),
        ("in", CompareOp::In),
    ] {
        env.add_test(name, move |state: &State, a: &Value, b: &Value| compare(state, &op, a, b));
    }
    env.add_test("lower", |state: &State, v: &Value| -> Result<bool, Error> {
        let s = to_py_str(state, v)?;
        Ok(s.chars().any(char::is_lowercase) && !s.chars().any(char::is_uppercase))
    });
    env.add_test("upper", |state: &State, v: &Value| -> Result<bool, Error> {
        let s = to_py_str(state, v)?;
        Ok(s.chars().any(char::is_uppercase) && !s.chars().any(char::is_lowercase))
    });
    env.add_test("sameas", is_sameas);
    env.add_test("sequence", is_sequence);
    env.add_test("iterable", is_iterable);
    env.add_test("callable", |v: &Value| v.kind() == ValueKind::Plain);
    env.add_test("number", is_number);
    env.add_test("integer", is_integer);
    env.add_function("raise_exception", raise_exception);
    env.add_function("strftime_now", |state: &State, format: &str| -> Result<String, Error> {
        state.consume_fuel(format.len() as u64)?;
        Ok(strftime(format, &NOW.get()))
    });
    // What jinja2 does not have.
    env.remove_global("debug");
    for name in ["bool", "chain", "lines", "pprint", "split", "zip"] {
        env.remove_filter(name);
    }
    for name in ["startingwith", "endingwith"] {
        env.remove_test(name);
    }
    env
}
