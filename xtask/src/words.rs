//! `cargo xtask words`: sentences that name their subject.
//!
//! A sentence that begins with "what", "who" or "nobody" in the place of its subject sends its reader looking for one. Comments,
//! string literals of Rust, docstrings of Python and sentences of Markdown are read; questions and headings may begin so.

use std::{path::Path, process::ExitCode};

/// Words that stand in the place of a subject.
const IN_PLACE: &[&str] = &["What", "Who", "Whom", "Whose", "Nobody", "Whoever", "Whatever"];

/// Files and folders that are not rewritten yet, with the sentences that they may still have. The numbers only ever fall.
const ALLOWED: &[(&str, usize)] = &[];

/// Fewer words than this are a label, not a sentence.
const SENTENCE_WORDS_MIN: usize = 3;

/// Checks all tracked Rust and Markdown files, and those of Python and the shell.
pub(crate) fn run() -> anyhow::Result<ExitCode> {
    let mut found = Vec::new();
    for file in crate::house::tracked()? {
        let extension = file.extension().and_then(|extension| extension.to_str());
        let read: fn(&str) -> Vec<(usize, String)> = match extension {
            Some("md") => in_markdown,
            Some("rs") => in_rust,
            Some("py" | "sh") => in_script,
            None if file.starts_with("scripts") => in_script,
            _ => continue,
        };
        if let Some(text) = crate::house::text_of(&file)? {
            let sentences = read(&text);
            found.extend(sentences.into_iter().map(|(line, words)| (file.clone(), line, words)));
        }
    }
    let (violations, left) = judge(&found, ALLOWED);
    let well = match left {
        0 => "sentences name their subjects".to_owned(),
        left => {
            format!("sentences name their subjects, but for {left} that are still to be rewritten")
        }
    };
    Ok(crate::verdict("words", &well, &violations))
}

/// The violations among the sentences that were found, and the number of those that are still allowed.
fn judge<P: AsRef<Path>>(
    found: &[(P, usize, String)],
    allowed: &[(&str, usize)],
) -> (Vec<String>, usize) {
    let (mut violations, mut left) = (Vec::new(), 0);
    let folder_of = |file: &Path| allowed.iter().position(|(folder, _)| file.starts_with(folder));
    for (file, line, words) in found {
        if folder_of(file.as_ref()).is_none() {
            violations.push(format!(
                "{}:{line} begins a sentence with \"{words} …\": name its subject",
                file.as_ref().display()
            ));
        }
    }
    for (place, (folder, most)) in allowed.iter().enumerate() {
        let count =
            found.iter().filter(|(file, ..)| folder_of(file.as_ref()) == Some(place)).count();
        left += count;
        if count > *most {
            violations.push(format!(
                "{folder} has {count} sentences that begin with what, who or nobody, and {most} are allowed: name the subject of each new one"
            ));
        } else if count < *most {
            violations.push(format!(
                "{folder} has {count} such sentences left of {most}: lower its number in xtask/src/words.rs, or take its row out"
            ));
        }
    }
    (violations, left)
}

/// Sentences of the comments and string literals of a Rust file that have no subject: line and first words.
fn in_rust(text: &str) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    let mut paragraph = Paragraph::default();
    let mut is_fenced = false;
    for (line, written) in (1..).zip(text.lines()) {
        let Some(comment) = comment_of(written) else {
            paragraph.end(&mut found);
            is_fenced = false;
            found.extend(in_code(written).map(|words| (line, words)));
            if let Some(trailing) = trailing_comment(written) {
                paragraph.add(line, trailing);
                paragraph.end(&mut found);
            }
            continue;
        };
        is_fenced ^= comment.trim_start().starts_with("```");
        if is_fenced || ends_paragraph(comment) {
            paragraph.end(&mut found);
        } else {
            if is_item(comment) {
                paragraph.end(&mut found);
            }
            paragraph.add(line, comment);
        }
    }
    paragraph.end(&mut found);
    found
}

/// Sentences of the comments and docstrings of a script that have no subject: line and first words.
fn in_script(text: &str) -> Vec<(usize, String)> {
    const DOCSTRING: &str = "\"\"\"";
    let mut found = Vec::new();
    let mut paragraph = Paragraph::default();
    let mut is_docstring = false;
    for (line, written) in (1..).zip(text.lines()) {
        let written = written.trim();
        let (begins, text) = match written.strip_prefix(DOCSTRING) {
            Some(text) if !is_docstring => (true, text),
            _ => (false, written),
        };
        let (ends, text) = match text.strip_suffix(DOCSTRING) {
            Some(text) => (begins || is_docstring, text),
            None => (false, text),
        };
        if begins {
            paragraph.end(&mut found);
        }
        match written.strip_prefix('#') {
            _ if (begins || is_docstring) && !text.is_empty() => paragraph.add(line, text),
            Some(comment)
                if !is_docstring && !comment.starts_with('!') && !ends_paragraph(comment) =>
            {
                paragraph.add(line, comment);
            }
            _ => paragraph.end(&mut found),
        }
        if ends {
            paragraph.end(&mut found);
        }
        is_docstring = (is_docstring || begins) && !ends;
    }
    paragraph.end(&mut found);
    found
}

/// Sentences of a Markdown file that have no subject: line and first words.
fn in_markdown(text: &str) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    let mut paragraph = Paragraph::default();
    let mut is_fenced = false;
    for (line, written) in (1..).zip(text.lines()) {
        let is_fence = written.trim_start().starts_with("```");
        is_fenced ^= is_fence;
        if is_fence
            || is_fenced
            || written.trim_start().starts_with(['#', '<'])
            || written.trim().is_empty()
        {
            paragraph.end(&mut found);
        } else if written.trim_start().starts_with('|') {
            paragraph.end(&mut found);
            for cell in written.split('|') {
                paragraph.add(line, cell);
                paragraph.end(&mut found);
            }
        } else {
            if is_item(written) {
                paragraph.end(&mut found);
            }
            paragraph.add(line, written);
        }
    }
    paragraph.end(&mut found);
    found
}

/// The text of a line that is a comment.
fn comment_of(line: &str) -> Option<&str> {
    let rest = line.trim_start().strip_prefix("//")?;
    Some(rest.strip_prefix(['/', '!']).unwrap_or(rest))
}

/// The comment behind the code of a line.
fn trailing_comment(line: &str) -> Option<&str> {
    let at = line.find(" // ")?;
    line[..at].matches('"').count().is_multiple_of(2).then(|| &line[at + 4..])
}

/// Whether a line of a comment belongs to no paragraph: it is empty, a heading, a row of a table or code.
fn ends_paragraph(comment: &str) -> bool {
    let text = comment.trim_start();
    text.is_empty() || text.starts_with(['#', '|']) || text.starts_with("```")
}

/// Whether a line begins an item of a list.
fn is_item(line: &str) -> bool {
    let text = line.trim_start();
    text.starts_with("- ")
        || text.starts_with("* ")
        || text.starts_with("> ")
        || text.split_once(". ").is_some_and(|(number, _)| {
            !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit())
        })
}

/// First words of the string literals of a line that have no subject. Messages begin in lower case.
fn in_code(line: &str) -> impl Iterator<Item = String> {
    let literals = line.replace("'\"'", "").replace("\\\"", "'");
    let literals: Vec<String> = literals.split('"').skip(1).step_by(2).map(str::to_owned).collect();
    literals.into_iter().filter_map(|literal| {
        let mut words = literal.split_whitespace();
        let first = words.next().filter(|_| !literal.starts_with(' '))?;
        let is_in_place = IN_PLACE.iter().any(|word| first.eq_ignore_ascii_case(word));
        (is_in_place
            && words.count() + 1 >= SENTENCE_WORDS_MIN
            && !literal.trim_end().ends_with('?'))
        .then(|| literal.split_whitespace().take(3).collect::<Vec<_>>().join(" "))
    })
}

/// Words of consecutive lines, which sentences run across.
#[derive(Default)]
struct Paragraph {
    words: Vec<(usize, String)>,
}

impl Paragraph {
    fn add(&mut self, line: usize, text: &str) {
        let text = text.trim_start_matches(['-', '*', '>', ' ']);
        self.words.extend(text.split_whitespace().map(|word| (line, word.to_owned())));
    }

    /// Ends the paragraph and notes its sentences that have no subject.
    fn end(&mut self, found: &mut Vec<(usize, String)>) {
        let ends = |word: &str| {
            word.trim_end_matches(['"', '\'', ')', '*', '`', ']', '_']).ends_with(['.', '!', '?'])
        };
        for sentence in self.words.split_inclusive(|(_, word)| ends(word)) {
            let (line, first) = &sentence[0];
            let bare = first
                .trim_start_matches(['"', '\'', '(', '*', '`', '_'])
                .trim_end_matches(['*', '_', '`'])
                .trim_end_matches("'s");
            let is_question = sentence.last().is_some_and(|(_, word)| word.contains('?'));
            if IN_PLACE.contains(&bare) && sentence.len() >= SENTENCE_WORDS_MIN && !is_question {
                let words: Vec<&str> = sentence.iter().take(3).map(|(_, word)| &**word).collect();
                found.push((*line, words.join(" ")));
            }
        }
        self.words.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sentence_without_a_subject_is_found_in_comments_and_docstrings_of_scripts() {
        let script = "#!/usr/bin/env python3\n\"\"\"What a node says of itself.\n\nIt is read once.\n\"\"\"\n\ndef f():\n    # It waits. Who comes\n    # first is served.\n    return \"What is this\"\n# What is left?\n\"\"\"Whoever asks.\"\"\"\n";
        let found = in_script(script);
        let lines: Vec<_> = found.iter().map(|(line, _)| *line).collect();
        assert_eq!(lines, [2, 8], "{found:?}");
    }

    #[test]
    fn a_sentence_without_a_subject_is_found_in_comments_messages_and_markdown() {
        // Written apart, so that this file does not find itself.
        let (what, nobody) = (concat!("Wh", "at"), concat!("Nob", "ody"));
        let message = concat!("wh", "at was kept is gone");
        for (text, expected) in [
            (format!("/// {what} a client sent last.\nfn f() {{}}\n"), vec![1]),
            (format!("//! A store.\n//! It is\n//! full. {nobody} reads\n//! it.\n"), vec![3]),
            (format!("let a = 1; // {what} it is now.\n"), vec![1]),
            (format!("fail(\n    \"{message}\",\n);\n"), vec![2]),
            (format!("/// - one\n/// - {what} comes after it\n"), vec![2]),
            // Questions, labels, code, and the word in any other place.
            (format!("// {what} would it cost?\n"), vec![]),
            (format!("// {what} else\n"), vec![]),
            (format!("/// ```\n/// {what} is this code\n/// ```\n"), vec![]),
            ("// It keeps what it has, and who asked.\n".to_owned(), vec![]),
            ("let a = \"who\";\n".to_owned(), vec![]),
        ] {
            let lines: Vec<usize> = in_rust(&text).into_iter().map(|(line, _)| line).collect();
            assert_eq!(lines, expected, "{text}");
        }
        for (text, expected) in [
            (format!("# {what} it is for\n\nA broker. {what} it sends is kept.\n"), vec![3]),
            (format!("| key | {what} it does here |\n"), vec![1]),
            (format!("```\n{what} is this code\n```\n**{nobody}** may read it.\n"), vec![4]),
            (format!("{what} if a disk is full? It waits.\n"), vec![]),
        ] {
            let lines: Vec<usize> = in_markdown(&text).into_iter().map(|(line, _)| line).collect();
            assert_eq!(lines, expected, "{text}");
        }
    }

    #[test]
    fn a_folder_may_have_no_more_than_before_and_its_number_falls_with_them() {
        let found = |file: &'static str, line| (file, line, String::new());
        let all = [found("old/a.rs", 1), found("old/b.rs", 2), found("new/a.rs", 3)];
        let (violations, left) = judge(&all, &[("old", 2)]);
        assert_eq!((violations.len(), left), (1, 2));
        assert!(violations[0].starts_with("new/a.rs:3 "), "{violations:?}");
        for (most, expected) in [(1, "old has 2 sentences"), (3, "old has 2 such sentences left")] {
            let (violations, _) = judge(&all[..2], &[("old", most)]);
            assert!(violations[0].starts_with(expected), "{violations:?}");
        }
    }
}
