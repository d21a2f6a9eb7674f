//! What any page of a report must be like. The fuzz targets check theirs with it, too.

/// Walks the page as a parser of well-formed markup would: every `<` begins a tag that the page
/// uses, every `&` an entity, and attributes hold no quotes. Raw text is only in `<style>`.
pub fn assert_markup(page: &str) {
    let (head, rest) = page.split_once("<style>").expect("a style");
    let (style, body) = rest.split_once("</style>").expect("its end");
    assert!(!style.contains('<'));
    assert!(
        !page.contains(|c: char| c.is_control() && c != '\n'),
        "a control character"
    );
    assert!(!page.to_ascii_lowercase().contains("javascript:\""));
    for part in [head, body] {
        let mut rest = part;
        while let Some((text, after)) = rest.split_once('<') {
            assert!(!text.contains('>'), "stray > in {text:?}");
            let (tag, after) = after.split_once('>').expect("an end of the tag");
            let name = tag
                .trim_start_matches(['/', '!'])
                .split(' ')
                .next()
                .unwrap()
                .to_ascii_lowercase();
            assert!(name.chars().all(|c| c.is_ascii_alphanumeric()), "<{tag}>");
            assert!(
                !["script", "img", "iframe", "object", "embed", "base", "form"].contains(&&*name),
                "<{tag}>"
            );
            let mut quoted = tag.split('"');
            let outside: String = quoted.by_ref().step_by(2).collect();
            assert!(
                outside
                    .chars()
                    .all(|c| c.is_ascii_alphanumeric() || " =-/!:".contains(c)),
                "<{tag}>"
            );
            assert!(!outside.contains(" on"), "<{tag}>");
            rest = after;
        }
        for after in part.split('&').skip(1) {
            let (name, _) = after.split_once(';').expect("an entity");
            assert!(["amp", "lt", "gt", "quot"].contains(&name), "&{name};");
        }
    }
}
