// Streams and events. Work is done when it is submitted, so a stream is always idle and an event
// has always happened; what is kept is what a program can ask about.
#include <atomic>
#include <chrono>

#include "emulated.h"

namespace emulated {

double milliseconds() {
  using namespace std::chrono;
  return duration<double, std::milli>(steady_clock::now().time_since_epoch()).count();
}

namespace {

struct Stream {
  int32_t id;
  uint32_t overflow = 0;
};

struct Event {
  bool recorded = false;
  double time = 0;
};

std::atomic<int32_t> next_stream{1};

Event* event_of(aclrtEvent event) { return static_cast<Event*>(event); }

aclError make_event(aclrtEvent* event) {
  *event = new Event;
  return ACL_SUCCESS;
}

}  // namespace
}  // namespace emulated

using namespace emulated;

EXPORT aclError aclrtCreateStreamWithConfig(aclrtStream* stream, uint32_t, uint32_t) {
  *stream = new Stream{next_stream++};
  return ACL_SUCCESS;
}
EXPORT aclError aclrtCreateStream(aclrtStream* stream) { return aclrtCreateStreamWithConfig(stream, 0, 0); }
EXPORT aclError aclrtDestroyStream(aclrtStream stream) {
  delete static_cast<Stream*>(stream);
  return ACL_SUCCESS;
}
EXPORT aclError aclrtDestroyStreamForce(aclrtStream stream) { return aclrtDestroyStream(stream); }
EXPORT aclError aclrtSynchronizeStream(aclrtStream) { return ACL_SUCCESS; }
EXPORT aclError aclrtSynchronizeStreamWithTimeout(aclrtStream, int32_t) { return ACL_SUCCESS; }
EXPORT aclError aclrtStreamQuery(aclrtStream, aclrtStreamStatus* status) {
  *status = ACL_STREAM_STATUS_COMPLETE;
  return ACL_SUCCESS;
}
EXPORT aclError aclrtStreamGetId(aclrtStream stream, int32_t* id) {
  *id = stream ? static_cast<Stream*>(stream)->id : 0;
  return ACL_SUCCESS;
}
EXPORT aclError aclrtSetStreamFailureMode(aclrtStream, uint64_t) { return ACL_SUCCESS; }
EXPORT aclError aclrtSetStreamAttribute(aclrtStream, aclrtStreamAttr, aclrtStreamAttrValue*) {
  return ACL_SUCCESS;
}
EXPORT aclError aclrtSetStreamOverflowSwitch(aclrtStream stream, uint32_t flag) {
  if (stream) static_cast<Stream*>(stream)->overflow = flag;
  return ACL_SUCCESS;
}
EXPORT aclError aclrtGetStreamOverflowSwitch(aclrtStream stream, uint32_t* flag) {
  *flag = stream ? static_cast<Stream*>(stream)->overflow : 0;
  return ACL_SUCCESS;
}

EXPORT aclError aclrtCreateEvent(aclrtEvent* event) { return make_event(event); }
EXPORT aclError aclrtCreateEventWithFlag(aclrtEvent* event, uint32_t) { return make_event(event); }
EXPORT aclError aclrtCreateEventExWithFlag(aclrtEvent* event, uint32_t) { return make_event(event); }
EXPORT aclError aclrtDestroyEvent(aclrtEvent event) {
  delete event_of(event);
  return ACL_SUCCESS;
}
EXPORT aclError aclrtResetEvent(aclrtEvent event, aclrtStream) {
  event_of(event)->recorded = false;
  return ACL_SUCCESS;
}
EXPORT aclError aclrtRecordEvent(aclrtEvent event, aclrtStream) {
  *event_of(event) = {true, milliseconds()};
  return ACL_SUCCESS;
}
EXPORT aclError aclrtStreamWaitEvent(aclrtStream, aclrtEvent) { return ACL_SUCCESS; }
EXPORT aclError aclrtSynchronizeEvent(aclrtEvent) { return ACL_SUCCESS; }
EXPORT aclError aclrtQueryEventStatus(aclrtEvent, aclrtEventRecordedStatus* status) {
  *status = ACL_EVENT_RECORDED_STATUS_COMPLETE;
  return ACL_SUCCESS;
}
EXPORT aclError aclrtQueryEventWaitStatus(aclrtEvent, aclrtEventWaitStatus* status) {
  *status = ACL_EVENT_WAIT_STATUS_COMPLETE;
  return ACL_SUCCESS;
}
EXPORT aclError aclrtEventElapsedTime(float* elapsed, aclrtEvent start, aclrtEvent end) {
  if (!event_of(start)->recorded || !event_of(end)->recorded) {
    return fail(ACL_ERROR_RT_PARAM_INVALID, "the time between events of which one was not recorded");
  }
  *elapsed = static_cast<float>(event_of(end)->time - event_of(start)->time);
  return ACL_SUCCESS;
}
EXPORT aclError aclrtEventGetTimestamp(aclrtEvent event, uint64_t* microseconds) {
  *microseconds = static_cast<uint64_t>(event_of(event)->time * 1000);
  return ACL_SUCCESS;
}

EXPORT aclError aclrtLaunchHostFunc(aclrtStream, aclrtHostFunc function, void* argument) {
  function(argument);
  return ACL_SUCCESS;
}
EXPORT aclError aclrtLaunchCallback(aclrtCallback function, void* argument, aclrtCallbackBlockType,
                                    aclrtStream) {
  function(argument);
  return ACL_SUCCESS;
}
EXPORT aclError aclrtSubscribeReport(uint64_t, aclrtStream) { return ACL_SUCCESS; }
EXPORT aclError aclrtUnSubscribeReport(uint64_t, aclrtStream) { return ACL_SUCCESS; }
EXPORT aclError aclrtProcessReport(int32_t) { return ACL_ERROR_RT_REPORT_TIMEOUT; }
