package docs

import (
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode"
)

// page is a file of Markdown, as far as the tests look at it.
type page struct {
	// name is the file's path from the repository's root.
	name string
	// anchors are those of the headings, as GitHub makes them.
	anchors map[string]bool
	links   []link
	blocks  []block
}

// link is a link to a file or within the page.
type link struct {
	line   int
	target string
}

// block is a block of code.
type block struct {
	line int
	// info is what stands behind the fence, such as "yaml policy"; "indented" for a block
	// without one.
	info string
	text string
}

const indented = "indented"

var (
	linkPattern  = regexp.MustCompile(`\]\(([^()\s]+)\)`)
	inlineCode   = regexp.MustCompile("`[^`]*`")
	linkedImages = regexp.MustCompile(`!\[[^\]]*\]`)
)

func parse(name, text string) *page {
	p := &page{name: name, anchors: map[string]bool{}}
	lines := strings.Split(text, "\n")
	for i := 0; i < len(lines); i++ {
		switch line := lines[i]; {
		case strings.HasPrefix(strings.TrimLeft(line, " "), "```"):
			i = p.addFenced(lines, i)
		case isIndented(line) && (i == 0 || strings.TrimSpace(lines[i-1]) == ""):
			i = p.addIndented(lines, i)
		default:
			p.addText(line, i+1)
		}
	}
	return p
}

// addFenced adds a block whose fence opens in a line, and returns the line that closes it.
func (p *page) addFenced(lines []string, open int) int {
	fence := strings.TrimLeft(lines[open], " ")
	margin := strings.Repeat(" ", len(lines[open])-len(fence))
	b := block{line: open + 1, info: strings.TrimSpace(strings.TrimLeft(fence, "`"))}
	i := open + 1
	for ; i < len(lines) && !strings.HasPrefix(strings.TrimLeft(lines[i], " "), "```"); i++ {
		b.text += strings.TrimPrefix(lines[i], margin) + "\n"
	}
	p.blocks = append(p.blocks, b)
	return i
}

func isIndented(line string) bool {
	return strings.HasPrefix(line, "    ") && strings.TrimSpace(line) != ""
}

// addIndented adds a block that begins in a line, and returns its last line.
func (p *page) addIndented(lines []string, begin int) int {
	margin := len(lines[begin]) - len(strings.TrimLeft(lines[begin], " "))
	b := block{line: begin + 1, info: indented}
	i := begin
	for ; i < len(lines) && isIndented(lines[i]); i++ {
		b.text += lines[i][min(margin, len(lines[i])):] + "\n"
	}
	p.blocks = append(p.blocks, b)
	return i - 1
}

func (p *page) addText(line string, number int) {
	if heading := strings.TrimLeft(line, "#"); heading != line && strings.HasPrefix(heading, " ") {
		p.addAnchor(heading)
	}
	line = linkedImages.ReplaceAllString(inlineCode.ReplaceAllString(line, "`code`"), "[image]")
	for _, match := range linkPattern.FindAllStringSubmatch(line, -1) {
		p.links = append(p.links, link{number, match[1]})
	}
}

// addAnchor adds a heading's, with a number if there is one like it already.
func (p *page) addAnchor(heading string) {
	heading = linkPattern.ReplaceAllString(strings.TrimSpace(heading), "]")
	name := strings.Map(func(c rune) rune {
		switch {
		case c == ' ':
			return '-'
		case unicode.IsLetter(c) || unicode.IsDigit(c) || c == '-' || c == '_':
			return unicode.ToLower(c)
		default:
			return -1
		}
	}, heading)
	for n, unique := 0, name; ; n++ {
		if n > 0 {
			unique = name + "-" + strconv.Itoa(n)
		}
		if !p.anchors[unique] {
			p.anchors[unique] = true
			return
		}
	}
}

// programs are those with which an indented block of commands begins.
var programs = []string{
	"curl", "docker", "git", "go", "helm", "jq", "kind", "kubectl", "make", "openssl", "redis-cli", "sidecar",
}

// script is a block's commands, if it has any.
func (b *block) script() (script string, ok bool) {
	switch language, _, _ := strings.Cut(b.info, " "); language {
	case "sh":
		return b.text, true
	case indented:
		first := strings.Fields(b.text)[0]
		return b.text, slices.Contains(programs, first)
	case "console":
		script = typed(b.text)
		return script, script != ""
	default:
		return "", false
	}
}

// typed is what was typed at the prompts of a console.
func typed(text string) (script string) {
	goesOn := false
	for line := range strings.Lines(text) {
		command, atPrompt := strings.CutPrefix(line, "$ ")
		if atPrompt || goesOn {
			script += command
			goesOn = strings.HasSuffix(strings.TrimSpace(line), `\`)
		}
	}
	return script
}
