// What Argo CD says of one object: its own engine compares a manifest with the live object.
//
//	argocd [-managers elasti-operator] [-ignore /spec/replicas] LIVE.json MANIFEST.json
//
// It prints Synced or OutOfSync. The fields of `-managers` are taken out by Argo CD's own code for
// `managedFieldsManagers`; a pointer is taken out here, as `jsonPointers` are.
package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"strings"

	"github.com/argoproj/argo-cd/v3/util/argo/managedfields"
	"github.com/argoproj/gitops-engine/pkg/diff"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/structured-merge-diff/v4/typed"
)

type pointer []string

func (p pointer) Normalize(object *unstructured.Unstructured) error {
	if len(p) > 0 {
		unstructured.RemoveNestedField(object.Object, p...)
	}
	return nil
}

func main() {
	managers := flag.String("managers", "", "field managers whose fields are left alone")
	ignore := flag.String("ignore", "", "a JSON pointer that is left alone")
	flag.Parse()
	word, err := judge(flag.Arg(0), flag.Arg(1), *managers, *ignore)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	fmt.Println(word)
}

func judge(livePath, configPath, managers, ignore string) (string, error) {
	live, err := read(livePath)
	if err != nil {
		return "", err
	}
	config, err := read(configPath)
	if err != nil {
		return "", err
	}
	if managers != "" {
		live, config, err = managedfields.Normalize(live, config, strings.Split(managers, ","), &typed.DeducedParseableType)
		if err != nil {
			return "", err
		}
	}
	var left pointer
	if ignore != "" {
		left = strings.Split(strings.TrimPrefix(ignore, "/"), "/")
	}
	found, err := diff.Diff(config, live, diff.WithNormalizer(left))
	if err != nil {
		return "", err
	}
	if found.Modified {
		return "OutOfSync", nil
	}
	return "Synced", nil
}

func read(path string) (*unstructured.Unstructured, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	object := &unstructured.Unstructured{}
	return object, json.Unmarshal(text, &object.Object)
}
