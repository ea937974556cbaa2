-- wrk ... -- FILE: posts the body that the file holds to /generate, and writes one JSON line when it is done
function init(arguments)
  local file = io.open(arguments[1], "rb")
  local body = file:read("*a")
  file:close()
  whole = wrk.format("POST", "/generate", { ["content-type"] = "application/json" }, body)
end

function request()
  return whole
end

function done(summary, latency)
  local errors = summary.errors
  local failed = errors.connect + errors.read + errors.write + errors.status + errors.timeout
  print(string.format(
    '{"requests":%d,"errors":%d,"seconds":%f,"bytes":%d,"latency_p50_us":%f,"latency_p99_us":%f,"latency_max_us":%f}',
    summary.requests, failed, summary.duration / 1e6, summary.bytes,
    latency:percentile(50), latency:percentile(99), latency.max))
end
