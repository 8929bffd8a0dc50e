//! Renders Hugging Face chat templates with minijinja, over a C ABI.
//!
//! What `transformers` does with jinja2 is emulated: its filters and globals, Python's `str`, `repr` and
//! `json.dumps`, Python's operators and string methods. A template sees nothing but the JSON that it is
//! given: there is no loader, no include, no import, and the time comes from the caller. How much it may do
//! is bounded for each rendering: see `HftLimits`.
//!
//! The Go side is tokenpool/chat; docs/chat-templates.md says where this differs from jinja2.

use crate::hft_content::loops_over_content;
use crate::hft_emulate::emulate;
use crate::hft_env::{environment, syntax};
use crate::hft_filters::Raised;
use crate::hft_json::Json;
use crate::hft_python::Limit;
use crate::hft_time::{HftNow, NOW};
use minijinja::machinery::{CodeGenerator, Instructions};
use minijinja::{Environment, Error, ErrorKind, Value};
use std::collections::BTreeMap;
use std::panic::{catch_unwind, AssertUnwindSafe};

/// The name of a template in error messages.
pub(crate) const NAME: &str = "chat_template";

/// The stack that compiling takes for each byte of a template, at most.
const STACK_PER_BYTE: usize = 2048;

/// The longest tag, not counting what is between quotes. The longest known has about 300 bytes. minijinja
/// folds constants in a time that grows with the square of an expression's length.
const MAX_TAG: usize = 4 << 10;

/// The longest message of an error, in characters.
const MAX_MESSAGE: usize = 2000;

/// What jinja2 reads otherwise than minijinja:
///
///   - `{% generation %}` only marks the assistant's part of a text; jinja2 runs the block in a scope of
///     its own, as `with` does.
///   - The newline after `{% raw %}` belongs to the text.
fn translate(src: &str) -> String {
    let src = src.replace("\r\n", "\n").replace('\r', "\n");
    let mut out = String::with_capacity(src.len());
    let mut rest = src.as_str();
    while let Some(i) = rest.find("{%") {
        out.push_str(&rest[..i]);
        let tag = &rest[i..];
        let Some(end) = tag.find("%}") else {
            rest = tag;
            break;
        };
        let body = &tag[2..end];
        let inner = body.trim_matches(|c: char| c == '-' || c == '+' || c.is_whitespace());
        let (tag_text, taken) = match inner {
            "generation" => (body.replacen(inner, "with", 1), end + 2),
            "endgeneration" => (body.replacen(inner, "endwith", 1), end + 2),
            "raw" if !body.ends_with(['-', '+']) => (format!("{body}+"), end + 2),
            _ => (String::new(), 0),
        };
        out.push_str("{%");
        if taken > 0 {
            out.push_str(&tag_text);
            out.push_str("%}");
            rest = &tag[taken..];
        } else {
            rest = &tag[2..];
        }
    }
    out.push_str(rest);
    out
}

/// Refuses tags longer than MAX_TAG.
fn check_tags(src: &str) -> Result<(), Error> {
    let b = src.as_bytes();
    let mut at = 0;
    while at + 1 < b.len() {
        match (b[at], b[at + 1]) {
            (b'{', b'#') => at += src[at..].find("#}").unwrap_or(b.len()),
            (b'{', b'{' | b'%') => {
                let mut length = 0;
                let mut quote = None;
                at += 2;
                while at < b.len() {
                    match quote {
                        Some(_) if b[at] == b'\\' => at += 1,
                        Some(q) if b[at] == q => quote = None,
                        Some(_) => {}
                        None if matches!(b[at], b'}' | b'%') && b.get(at + 1) == Some(&b'}') => break,
                        None => {
                            length += 1;
                            if matches!(b[at], b'"' | b'\'') {
                                quote = Some(b[at]);
                            }
                        }
                    }
                    if length > MAX_TAG {
                        let detail = format!("a tag is longer than {MAX_TAG} bytes");
                        return Err(Error::new(ErrorKind::SyntaxError, detail));
                    }
                    at += 1;
                }
            }
            _ => at += 1,
        }
    }
    Ok(())
}

/// A compiled template.
pub struct Tmpl {
    env: Environment<'static>,
    instructions: Instructions<'static>,
    openai: bool,
    /// What the instructions refer to; it goes after them.
    _src: Box<str>,
}

impl Tmpl {
    /// Compiles on a thread with a large stack, since an expression as long as `1+1+1+...` is as deep as it
    /// is long.
    fn new(src: &str) -> Result<Tmpl, Failure> {
        let failed = |message: String| Failure { code: PANIC, line: 0, message };
        std::thread::scope(|s| {
            std::thread::Builder::new()
                .stack_size((16 << 20) + src.len() * STACK_PER_BYTE)
                .spawn_scoped(s, || guarded(|| Tmpl::compile(src).map_err(|e| Failure { code: COMPILE, ..failure(e) })))
                .map_err(|e| failed(format!("no thread to compile on: {e}")))?
                .join()
                .unwrap_or_else(|_| Err(failed("the compiling thread panicked".into())))
        })
    }

    fn compile(src: &str) -> Result<Tmpl, Error> {
        check_tags(src)?;
        let owned = translate(src).into_boxed_str();
        // SAFETY: the text does not move when the box does, and lives as long as the instructions.
        let src: &'static str = unsafe { &*(&*owned as *const str) };
        let ast = minijinja::machinery::parse(src, NAME, syntax())?;
        let openai = loops_over_content(&ast);
        let mut code = CodeGenerator::new(NAME, src);
        code.compile_stmt(&ast);
        let (instructions, _) = code.finish();
        Ok(Tmpl { env: environment(), instructions: emulate(instructions, src), openai, _src: owned })
    }

    fn render(&self, ctx: &str, limits: &HftLimits, now: &HftNow) -> Result<Vec<u8>, Failure> {
        let ctx = Json::parse(ctx).map_err(|e| Failure { code: CONTEXT, line: 0, message: e })?;
        let mut env = self.env.clone(); // of references only
        env.set_fuel(Some(limits.fuel));
        env.set_recursion_limit(limits.recursion as usize);
        NOW.set(*now);
        let mut text = String::new();
        run(&env, &self.instructions, ctx, &mut text).map_err(failure)?;
        if text.len() as u64 > limits.output {
            return Err(Failure {
                code: LIMIT_OUTPUT,
                line: 0,
                message: format!("the text has {} bytes, more than {}", text.len(), limits.output),
            });
        }
        Ok(text.into_bytes())
    }
}

/// Runs the instructions. What they write is paid for with fuel, so that its length needs no check before
/// the end.
fn run<'e>(
    env: &'e Environment<'e>,
    instructions: &Instructions<'e>,
    ctx: Value,
    text: &mut String,
) -> Result<(), Error> {
    let blocks = BTreeMap::new();
    let mut out = minijinja::machinery::make_string_output(text);
    minijinja::machinery::eval(env, instructions, ctx, &blocks, &mut out, minijinja::AutoEscape::None).map(|_| ())
}

/// How much one rendering may do.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct HftLimits {
    /// The work: an instruction, or 64 bytes of text made or read, takes one.
    fuel: u64,
    /// The length of the text, in bytes.
    output: u64,
    /// How deep macros and loops may be nested; a macro takes about five. At most 500.
    recursion: u32,
}

/// Bytes that belong to this library until hft_free_buf.
#[repr(C)]
pub struct HftBuf {
    ptr: *mut u8,
    len: usize,
}

/// A status other than 0, with the line of the template where it is known, else 0.
struct Failure {
    code: i32,
    line: u32,
    message: String,
}

/// What went wrong; tokenpool/chat/template.go has the same numbers.
const COMPILE: i32 = 1;
const RAISED: i32 = 2;
const LIMIT_FUEL: i32 = 3;
const LIMIT_OUTPUT: i32 = 4;
const LIMIT_RECURSION: i32 = 5;
const CONTEXT: i32 = 6;
const TEMPLATE: i32 = 7;
const PANIC: i32 = 8;

fn failure(e: Error) -> Failure {
    let mut code = match e.kind() {
        ErrorKind::OutOfFuel => LIMIT_FUEL,
        ErrorKind::InvalidOperation if e.detail() == Some("recursion limit exceeded") => LIMIT_RECURSION,
        _ => TEMPLATE,
    };
    let mut message = match e.detail() {
        Some(detail) => format!("{}: {detail}", e.kind()),
        None => e.kind().to_string(),
    };
    let mut source = std::error::Error::source(&e);
    while let Some(s) = source {
        if let Some(r) = s.downcast_ref::<Raised>() {
            (code, message) = (RAISED, r.0.clone());
        } else if s.is::<Limit>() {
            code = LIMIT_RECURSION;
        } else if let Some(inner) = s.downcast_ref::<Error>() {
            if inner.kind() == ErrorKind::OutOfFuel {
                code = LIMIT_FUEL;
            }
        }
        source = s.source();
    }
    if let Some((at, _)) = message.char_indices().nth(MAX_MESSAGE) {
        message.truncate(at);
        message.push_str("...");
    }
    Failure { code, line: e.line().unwrap_or(0) as u32, message }
}

fn give(bytes: Vec<u8>) -> HftBuf {
    let b = bytes.into_boxed_slice();
    let len = b.len();
    HftBuf { ptr: Box::into_raw(b) as *mut u8, len }
}

/// Runs f; a panic in it becomes a failure.
fn guarded<T>(f: impl FnOnce() -> Result<T, Failure>) -> Result<T, Failure> {
    catch_unwind(AssertUnwindSafe(f)).unwrap_or_else(|p| {
        let what = p.downcast_ref::<&str>().map(|s| s.to_string()).or_else(|| p.downcast_ref::<String>().cloned());
        Err(Failure { code: PANIC, line: 0, message: format!("panic: {}", what.unwrap_or_default()) })
    })
}

/// # Safety
/// p names n bytes.
unsafe fn text<'a>(p: *const u8, n: usize, code: i32) -> Result<&'a str, Failure> {
    std::str::from_utf8(std::slice::from_raw_parts(p, n)).map_err(|e| Failure {
        code,
        line: 0,
        message: format!("byte {}: not valid UTF-8", e.valid_up_to()),
    })
}

/// Compiles a template. Returns null, the status, line and message, or the template.
///
/// # Safety
/// p names n bytes of memory; the others are pointers to write to.
#[no_mangle]
pub unsafe extern "C" fn hft_new(
    p: *const u8,
    n: usize,
    status: *mut i32,
    line: *mut u32,
    message: *mut HftBuf,
) -> *mut Tmpl {
    let made = guarded(|| Tmpl::new(text(p, n, COMPILE)?));
    match made {
        Ok(t) => {
            *status = 0;
            Box::into_raw(Box::new(t))
        }
        Err(f) => {
            (*status, *line, *message) = (f.code, f.line, give(f.message.into_bytes()));
            std::ptr::null_mut()
        }
    }
}

/// 1 if the template goes over the parts of contents, else 0.
///
/// # Safety
/// t is from hft_new.
#[no_mangle]
pub unsafe extern "C" fn hft_loops_over_content(t: *const Tmpl) -> i32 {
    (*t).openai as i32
}

/// Renders a template with a JSON object as its context, into out: the text if the status returned is 0,
/// else a message.
///
/// # Safety
/// t is from hft_new, p names n bytes of memory, the others are valid pointers.
#[no_mangle]
pub unsafe extern "C" fn hft_render(
    t: *const Tmpl,
    p: *const u8,
    n: usize,
    limits: *const HftLimits,
    now: *const HftNow,
    line: *mut u32,
    out: *mut HftBuf,
) -> i32 {
    match guarded(|| (*t).render(text(p, n, CONTEXT)?, &*limits, &*now)) {
        Ok(bytes) => {
            *out = give(bytes);
            0
        }
        Err(f) => {
            (*line, *out) = (f.line, give(f.message.into_bytes()));
            f.code
        }
    }
}

/// # Safety
/// b is from this library, and not used again.
#[no_mangle]
pub unsafe extern "C" fn hft_free_buf(b: HftBuf) {
    if !b.ptr.is_null() {
        drop(Box::from_raw(std::ptr::slice_from_raw_parts_mut(b.ptr, b.len)));
    }
}

/// # Safety
/// t is from hft_new, and not used again.
#[no_mangle]
pub unsafe extern "C" fn hft_free(t: *mut Tmpl) {
    if !t.is_null() {
        drop(Box::from_raw(t));
    }
}
