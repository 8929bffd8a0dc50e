//! What a template does with the contents of messages.

use minijinja::machinery::ast::{CallArg, Expr, Stmt};
use std::collections::{BTreeMap, BTreeSet, HashSet};

/// Whether a template goes over the parts of a message's content, by the rules of vLLM 0.33, so that
/// the same templates get their contents as lists of parts. `Err` of the walk is vLLM's failed assertion,
/// after which it takes the template for one that wants strings.
pub(crate) fn loops_over_content(root: &Stmt) -> bool {
    let mut walk = Walk::default();
    walk.stmt(root);
    walk.loops_over_content().unwrap_or(false)
}

pub(crate) type Assigned<'a> = (&'a Expr<'a>, &'a Expr<'a>);

/// The parts of a template that matter, in the order of its text.
#[derive(Default)]
pub(crate) struct Walk<'a> {
    sets: Vec<Assigned<'a>>,
    loops: Vec<(Assigned<'a>, Vec<usize>)>, // target and iterable; the macros around it
    macros: Vec<(&'a str, Vec<Option<&'a str>>)>,
    calls: Vec<(&'a str, &'a [CallArg<'a>])>,
    inside: Vec<usize>,
}

/// vLLM gives up on a template.
pub(crate) struct GaveUp;

impl<'a> Walk<'a> {
    fn stmts(&mut self, body: &'a [Stmt<'a>]) {
        for s in body {
            self.stmt(s)
        }
    }

    fn stmt(&mut self, s: &'a Stmt<'a>) {
        match s {
            Stmt::Template(t) => self.stmts(&t.children),
            Stmt::EmitExpr(e) => self.expr(&e.expr),
            Stmt::EmitRaw(_) | Stmt::Continue(_) | Stmt::Break(_) => {}
            Stmt::ForLoop(f) => {
                self.loops.push(((&f.target, &f.iter), self.inside.clone()));
                self.expr(&f.iter);
                self.stmts(&f.body);
                self.stmts(&f.else_body);
                if let Some(e) = &f.filter_expr {
                    self.expr(e)
                }
            }
            Stmt::IfCond(i) => {
                self.expr(&i.expr);
                self.stmts(&i.true_body);
                self.stmts(&i.false_body);
            }
            Stmt::WithBlock(w) => {
                for (_, e) in &w.assignments {
                    self.expr(e)
                }
                self.stmts(&w.body);
            }
            Stmt::Set(s) => {
                self.sets.push((&s.target, &s.expr));
                self.expr(&s.expr);
            }
            Stmt::SetBlock(s) => {
                if let Some(e) = &s.filter {
                    self.expr(e)
                }
                self.stmts(&s.body);
            }
            Stmt::AutoEscape(a) => self.stmts(&a.body),
            Stmt::FilterBlock(f) => {
                self.expr(&f.filter);
                self.stmts(&f.body);
            }
            Stmt::Macro(m) => {
                let args = m.args.iter().map(|a| if let Expr::Var(v) = a { Some(v.id) } else { None }).collect();
                self.inside.push(self.macros.len());
                self.macros.push((m.name, args));
                m.defaults.iter().for_each(|e| self.expr(e));
                self.stmts(&m.body);
                self.inside.pop();
            }
            Stmt::CallBlock(c) => {
                self.call(&c.call.expr, &c.call.args);
                self.stmts(&c.macro_decl.body);
            }
            Stmt::Do(d) => self.call(&d.call.expr, &d.call.args),
        }
    }

    fn call(&mut self, callee: &'a Expr<'a>, args: &'a [CallArg<'a>]) {
        if let Expr::Var(v) = callee {
            self.calls.push((v.id, args));
        }
        self.expr(callee);
        self.args(args);
    }

    fn args(&mut self, args: &'a [CallArg<'a>]) {
        for a in args {
            match a {
                CallArg::Pos(e) | CallArg::Kwarg(_, e) | CallArg::PosSplat(e) | CallArg::KwargSplat(e) => self.expr(e),
            }
        }
    }

    fn expr(&mut self, e: &'a Expr<'a>) {
        match e {
            Expr::Var(_) | Expr::Const(_) => {}
            Expr::Slice(s) => {
                self.expr(&s.expr);
                for e in [&s.start, &s.stop, &s.step].into_iter().flatten() {
                    self.expr(e)
                }
            }
            Expr::UnaryOp(u) => self.expr(&u.expr),
            Expr::BinOp(b) => {
                self.expr(&b.left);
                self.expr(&b.right);
            }
            Expr::Compare(c) => {
                self.expr(&c.expr);
                c.ops.iter().for_each(|o| self.expr(&o.expr));
            }
            Expr::IfExpr(i) => {
                self.expr(&i.test_expr);
                self.expr(&i.true_expr);
                if let Some(e) = &i.false_expr {
                    self.expr(e)
                }
            }
            Expr::Filter(f) => {
                if let Some(e) = &f.expr {
                    self.expr(e)
                }
                self.args(&f.args);
            }
            Expr::Test(t) => {
                self.expr(&t.expr);
                self.args(&t.args);
            }
            Expr::GetAttr(g) => self.expr(&g.expr),
            Expr::GetItem(g) => {
                self.expr(&g.expr);
                self.expr(&g.subscript_expr);
            }
            Expr::Call(c) => self.call(&c.expr, &c.args),
            Expr::List(l) => l.items.iter().for_each(|e| self.expr(e)),
            Expr::Tuple(t) => t.items.iter().for_each(|e| self.expr(e)),
            Expr::Map(m) => {
                m.keys.iter().for_each(|e| self.expr(e));
                m.values.iter().for_each(|e| self.expr(e));
            }
        }
    }

    /// The names that stand for `messages` or a part of it: by set, and as attributes of namespaces.
    fn message_lists(&self) -> BTreeSet<String> {
        let mut seen = BTreeSet::from(["messages".to_string()]);
        let mut todo = vec!["messages".to_string()];
        while let Some(name) = todo.pop() {
            let mut found = Vec::new();
            for (target, value) in &self.sets {
                if let (Expr::Var(t), Expr::Call(c)) = (target, value) {
                    if matches!(&c.expr, Expr::Var(f) if f.id == "namespace") {
                        for a in &c.args {
                            match a {
                                CallArg::Kwarg(k, e) if reads(e, &name, None) => found.push(format!("{}.{k}", t.id)),
                                _ => {}
                            }
                        }
                    }
                }
                if reads(value, &name, None) {
                    found.extend(dotted(target));
                }
            }
            for f in found {
                if seen.insert(f.clone()) {
                    todo.push(f);
                }
            }
        }
        seen
    }

    fn loops_over_content(&self) -> Result<bool, GaveUp> {
        let lists = self.message_lists();
        let mut items = HashSet::new();
        for ((target, iter), _) in &self.loops {
            if lists.iter().any(|l| reads(iter, l, None)) {
                items.insert(loop_var(target)?);
            }
        }
        let is_content = |e: &Expr| items.iter().any(|i| reads(e, i, Some("content")));
        // The parameters of macros that are given a content.
        let mut params: BTreeMap<usize, BTreeSet<&str>> = BTreeMap::new();
        for (n, (name, args)) in self.macros.iter().enumerate() {
            for (_, given) in self.calls.iter().filter(|c| c.0 == *name) {
                let mut at = 0;
                for a in *given {
                    match a {
                        CallArg::Pos(e) => {
                            if let Some(Some(p)) = args.get(at) {
                                if is_content(e) {
                                    params.entry(n).or_default().insert(p);
                                }
                            }
                            at += 1;
                        }
                        CallArg::Kwarg(k, e) if args.contains(&Some(*k)) && is_content(e) => {
                            params.entry(n).or_default().insert(k);
                        }
                        _ => {}
                    }
                }
            }
        }
        for ((target, iter), around) in &self.loops {
            if is_content(iter) {
                loop_var(target)?;
                return Ok(true);
            }
            let Expr::Var(v) = iter else { continue };
            let given = around.iter().rev().find_map(|n| params.get(n)).is_some_and(|p| p.contains(v.id));
            if given || (around.is_empty() && v.id == "content") {
                loop_var(target)?;
                return Ok(true);
            }
        }
        Ok(false)
    }
}

pub(crate) fn loop_var<'a>(target: &'a Expr<'a>) -> Result<&'a str, GaveUp> {
    match target {
        Expr::Var(v) => Ok(v.id),
        _ => Err(GaveUp),
    }
}

/// `a` or `a.b` of the target of a set.
pub(crate) fn dotted(e: &Expr) -> Option<String> {
    match e {
        Expr::Var(v) => Some(v.id.to_string()),
        Expr::GetAttr(g) => Some(format!("{}.{}", dotted(&g.expr)?, g.name)),
        _ => None,
    }
}

/// Whether e is the variable (or `ns.attr`), or its item key, or a filter, test or slice of that.
pub(crate) fn reads(e: &Expr, var: &str, key: Option<&str>) -> bool {
    match e {
        Expr::Filter(f) => f.expr.as_ref().is_some_and(|e| reads(e, var, key)),
        Expr::Test(t) => reads(&t.expr, var, key),
        Expr::Slice(s) => reads(&s.expr, var, key),
        e => match key {
            None => is_var(e, var),
            Some(key) => match e {
                Expr::GetAttr(g) => g.name == key && is_var(&g.expr, var),
                Expr::GetItem(g) => {
                    is_var(&g.expr, var) && matches!(&g.subscript_expr, Expr::Const(c) if c.value.as_str() == Some(key))
                }
                _ => false,
            },
        },
    }
}

pub(crate) fn is_var(e: &Expr, var: &str) -> bool {
    match e {
        Expr::Var(v) => v.id == var,
        Expr::GetAttr(g) => match var.rsplit_once('.') {
            Some((base, attr)) => g.name == attr && is_var(&g.expr, base),
            None => false,
        },
        _ => false,
    }
}
