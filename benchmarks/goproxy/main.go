// A bare reverse proxy of Go's standard library, as a reference.
//
// usage: goproxy LISTEN BACKEND
package main

import (
	"log"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
)

func main() {
	backend, err := url.Parse("http://" + os.Args[2])
	if err != nil {
		log.Fatal(err)
	}
	proxy := httputil.NewSingleHostReverseProxy(backend)
	// The default keeps two idle connections, which would measure connecting.
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.MaxIdleConns = 1000
	transport.MaxIdleConnsPerHost = 1000
	proxy.Transport = transport
	log.Fatal(http.ListenAndServe(os.Args[1], proxy))
}
