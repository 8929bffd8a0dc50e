//! Puts the operators of hft_ops into the place of minijinja's instructions.

use crate::hft::NAME;
use crate::hft_ops::{names_method, CompareOp};
use minijinja::machinery::{Instruction, Instructions};
use minijinja::value::Value;
use std::collections::HashSet;

// The names of the filters that emulate() applies. No template can call them.
pub(crate) const ATTRIBUTE: &str = "#attribute";
pub(crate) const BUILT: &str = "#built";
pub(crate) const CONCAT: &str = "#concat";
pub(crate) const ESCAPED: &str = "#escaped";
pub(crate) const ITEM: &str = "#item";
pub(crate) const ITERATED: &str = "#iterated";
pub(crate) const MAPPING: &str = "#mapping";
pub(crate) const PLAIN: &str = "#plain";
pub(crate) const REMAINDER: &str = "#remainder";
pub(crate) const SLICE: &str = "#slice";
pub(crate) const STORED: &str = "#stored";
pub(crate) const COMPARES: [(&str, &str, CompareOp); 8] = [
    ("#eq", "#eq chained", CompareOp::Eq),
    ("#ne", "#ne chained", CompareOp::Ne),
    ("#lt", "#lt chained", CompareOp::Lt),
    ("#lte", "#lte chained", CompareOp::Lte),
    ("#gt", "#gt chained", CompareOp::Gt),
    ("#gte", "#gte chained", CompareOp::Gte),
    ("#in", "#in chained", CompareOp::In),
    ("#not in", "#not in chained", CompareOp::NotIn),
];

pub(crate) fn compare_name(op: CompareOp) -> &'static str {
    COMPARES[op as usize].0
}

/// Puts our operators in the place of minijinja's instructions. Where it is plain that both do the same and
/// no more work than is paid for, as in `message.role == "user"`, the instruction stays, since it is faster.
pub(crate) fn emulate<'s>(old: Instructions<'s>, src: &'s str) -> Instructions<'s> {
    let code: Vec<Instruction<'s>> = (0..).map_while(|i| old.get(i).cloned()).collect();
    let mut targets = HashSet::new();
    for i in &code {
        if let Some(t) = target(i) {
            targets.insert(t as usize);
        }
    }
    let marks = code.iter().any(|i| matches!(i, Instruction::ApplyFilter("safe" | "escape" | "e", ..)));
    // A filter with a number of its own, below 50, is looked up once a rendering.
    let used = code.iter().map(|i| if let Instruction::ApplyFilter(_, _, n) = i { *n } else { 0 }).max().unwrap_or(0);
    let mut numbers: Vec<&str> = Vec::new();
    let mut filter = |name: &'static str, args| {
        let n = numbers.iter().position(|n| *n == name).unwrap_or_else(|| {
            numbers.push(name);
            numbers.len() - 1
        });
        let number = if used < 250 && n + (used as usize) < 49 { used + 1 + n as u8 } else { !0 };
        Instruction::ApplyFilter(name, Some(args), number)
    };
    let short = |v: &Value| v.as_object().is_none() && v.as_str().map_or(0, str::len) <= 256;
    // The constant that is the right operand of the instruction n.
    let right = |n: usize| match code.get(n.wrapping_sub(1)) {
        Some(Instruction::LoadConst(v)) if !targets.contains(&n) => Some(v),
        _ => None,
    };
    // Where the right operand of the instruction n begins, if it is a.b.c.
    let chain = |n: usize| {
        let mut at = n;
        loop {
            if targets.contains(&at) || at == 0 {
                return None;
            }
            at -= 1;
            match &code[at] {
                Instruction::GetAttr(_) => {}
                Instruction::Lookup(_) => return Some(at),
                _ => return None,
            }
        }
    };
    let left = |n: usize| chain(n).and_then(right);
    let is_text = |v: Option<&Value>| v.is_some_and(|v| v.as_str().is_some());

    let mut texts = HashSet::new(); // additions whose result is a text
    let mut groups: Vec<Vec<Instruction<'s>>> = Vec::with_capacity(code.len());
    for (n, i) in code.iter().enumerate() {
        let mut group = Vec::with_capacity(1);
        match i {
            Instruction::PushLoop(_) => group.extend([filter(ITERATED, 1), i.clone()]),
            Instruction::StringConcat => group.push(filter(CONCAT, 2)),
            Instruction::Slice => group.push(filter(SLICE, 4)),
            Instruction::GetAttr(name) if names_method(name) => {
                group.extend([Instruction::LoadConst(Value::from(*name)), filter(ATTRIBUTE, 2)])
            }
            Instruction::GetItem if right(n).is_some_and(|v| v.as_str().is_some_and(|s| !names_method(s))) => {
                group.push(i.clone())
            }
            Instruction::GetItem => group.push(filter(ITEM, 2)),
            Instruction::BuildMap(0) | Instruction::BuildList(Some(0)) | Instruction::BuildTuple(Some(0)) => {
                group.push(i.clone())
            }
            Instruction::BuildMap(pairs) => group.extend([Instruction::BuildList(Some(pairs * 2)), filter(MAPPING, 1)]),
            Instruction::BuildList(_) | Instruction::BuildTuple(_) => group.extend([i.clone(), filter(BUILT, 1)]),
            Instruction::SetAttr(_) => {
                group.extend([Instruction::Swap, filter(STORED, 1), Instruction::Swap, i.clone()])
            }
            Instruction::Add => {
                if marks {
                    group.extend([filter(ESCAPED, 2), Instruction::UnpackList(2)]);
                }
                group.push(i.clone());
                let before = chain(n).unwrap_or(n).wrapping_sub(1);
                let sum = texts.contains(&before) && !targets.contains(&(before + 1));
                if is_text(right(n)) || is_text(left(n)) || sum {
                    texts.insert(n);
                } else {
                    group.push(filter(PLAIN, 1));
                }
            }
            Instruction::Rem => group.push(filter(REMAINDER, 2)),
            Instruction::Mul => group.extend([i.clone(), filter(PLAIN, 1)]),
            Instruction::Eq | Instruction::Ne if right(n).is_some_and(short) || left(n).is_some_and(short) => {
                group.push(i.clone())
            }
            Instruction::Eq => group.push(filter(compare_name(CompareOp::Eq), 2)),
            Instruction::Ne => group.push(filter(compare_name(CompareOp::Ne), 2)),
            Instruction::Lt => group.push(filter(compare_name(CompareOp::Lt), 2)),
            Instruction::Lte => group.push(filter(compare_name(CompareOp::Lte), 2)),
            Instruction::Gt => group.push(filter(compare_name(CompareOp::Gt), 2)),
            Instruction::Gte => group.push(filter(compare_name(CompareOp::Gte), 2)),
            // Of a text the needle must be one too, which is not known here.
            Instruction::In if left(n).is_some_and(|v| v.as_str().is_some_and(|s| s.len() <= 256)) => {
                group.push(i.clone())
            }
            Instruction::In => group.push(filter(compare_name(CompareOp::In), 2)),
            Instruction::CompareAndPreserve(op) => {
                let op = format!("{op:?}");
                match COMPARES.iter().find(|c| format!("{:?}", c.2) == op) {
                    Some(c) => group.extend([filter(c.1, 2), Instruction::UnpackList(2)]),
                    None => group.push(i.clone()),
                }
            }
            i => group.push(i.clone()),
        }
        groups.push(group);
    }

    let mut moved = Vec::with_capacity(groups.len() + 1);
    let mut at = 0;
    for g in &groups {
        moved.push(at);
        at += g.len() as u32;
    }
    moved.push(at);
    let to = |t: u32| moved.get(t as usize).copied().unwrap_or(t);
    let mut new = Instructions::new(NAME, src);
    for (n, group) in groups.into_iter().enumerate() {
        let line = old.get_line(n as u32).unwrap_or(0).min(u16::MAX as usize) as u16;
        for i in group {
            new.add_with_line(
                match i {
                    Instruction::Iterate(t) => Instruction::Iterate(to(t)),
                    Instruction::Jump(t) => Instruction::Jump(to(t)),
                    Instruction::JumpIfFalse(t) => Instruction::JumpIfFalse(to(t)),
                    Instruction::JumpIfFalseOrPop(t) => Instruction::JumpIfFalseOrPop(to(t)),
                    Instruction::JumpIfTrueOrPop(t) => Instruction::JumpIfTrueOrPop(to(t)),
                    Instruction::BuildMacro(name, t, flags) => Instruction::BuildMacro(name, to(t), flags),
                    i => i,
                },
                line,
            );
        }
    }
    new
}

/// Where an instruction may jump to.
pub(crate) fn target(i: &Instruction) -> Option<u32> {
    match i {
        Instruction::Iterate(t)
        | Instruction::Jump(t)
        | Instruction::JumpIfFalse(t)
        | Instruction::JumpIfFalseOrPop(t)
        | Instruction::JumpIfTrueOrPop(t)
        | Instruction::BuildMacro(_, t, _) => Some(*t),
        _ => None,
    }
}
